"""Input and output of one model step.

Columns are `array.array`: contiguous, and read by Rust through the buffer protocol.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core.pooling import Pooling

LAST_SAMPLED = -1
"""Placeholder in a plan for the slot's last sampled token, which only the device knows yet."""
NOT_FINITE = -1
"""In a result, in place of a token: the hidden state of the sequence is not finite."""
NO_TOKEN = -2
"""In a result, in place of a token: the grammar of the sequence became too complex."""
LATE_MASK = -3
"""In a result, as the only token of a sequence: nothing was sampled, because its grammar's mask was
late. The row must be computed again, together with a row planned ahead behind it.
"""
NO_BLOCK = -1
"""Block table entry whose tokens lie behind the group's window."""

MAX_PLAN_GRAMMAR_BYTES = 256 * 1024 + 1
"""Maximum total size of a plan's grammars in bytes: room for one grammar of the largest size."""

LogprobRow = tuple[float, int, list[tuple[int, float]]]
"""Log-probability of a token, its rank (1 = most likely), and (token id, log-probability) pairs of
the most likely tokens.
"""


def _ints() -> array[int]:
    return array("i")


def _bytes() -> array[int]:
    return array("b")


@dataclass(frozen=True, slots=True)
class Registration:
    """State of a sequence that takes a slot. Later plans refer to the slot only."""

    slot: int
    sampling: bytes
    """Encoded sampling parameters, opaque to the engine."""
    prompt_logprobs: int = -1
    """Number of alternatives for each prompt token; -1 for no prompt log-probabilities."""
    grammar: int = 0
    """1-based index into the plan's `grammars`; 0 without a grammar."""
    adapter: int = 0
    history: array[int] = field(default_factory=_ints)
    """Prompt and output so far if the sampler needs them, else empty."""
    prompt_len: int = 0
    """Number of prompt tokens in `history`."""
    pooling: int = Pooling.NONE
    """If not NONE, `sample` requests the sequence's vector instead of a token."""


@dataclass(slots=True)
class StepPlan:
    """Work of all ranks in one step: n sequences in G KV groups.

    A registration resets its slot: empty block tables, no sampled token. Each slot keeps its block
    tables, and plans carry deltas to them. Entry e = i * G + g of `kept` and `added_offsets` is for
    sequence i and group g: the first `kept[e]` entries of the table stay, followed by
    `added[added_offsets[e]:added_offsets[e + 1]]`.
    """

    step: int
    registrations: list[Registration] = field(default_factory=list)
    slots: array[int] = field(default_factory=_ints)
    starts: array[int] = field(default_factory=_ints)
    """[n] Position of the first token to compute."""
    lengths: array[int] = field(default_factory=_ints)
    """[n] Number of tokens to compute, drafts included."""
    sample: array[int] = field(default_factory=_bytes)
    """[n] Whether the last 1 + drafts tokens need logits, or a pooled sequence its vector."""
    drafts: array[int] = field(default_factory=_ints)
    """[n] Number of trailing draft tokens; empty if no sequence has any."""
    tokens: array[int] = field(default_factory=_ints)
    """[sum of lengths] LAST_SAMPLED is valid only as a sequence's first token."""
    targets: array[int] = field(default_factory=_ints)
    """Same length as `tokens`, or empty: the prompt token that follows each token, or -1 if its
    log-probability is not requested.
    """
    kept: array[int] = field(default_factory=_ints)
    added_offsets: array[int] = field(default_factory=lambda: array("i", (0,)))
    added: array[int] = field(default_factory=_ints)
    grammars: list[bytes] = field(default_factory=list)
    """Encoded grammars that the registrations refer to."""


@dataclass(slots=True)
class StepResult:
    """Output of a step. Dicts are keyed by the sequence's index in the plan. The last token of a
    sequence may be NOT_FINITE or NO_TOKEN; LATE_MASK stands alone.

    `counts[i]` is 0 without `sample` and for pooled sequences, else 1 + the number of accepted
    drafts. `prompt_logprobs[i][j]` is for the prompt token at position starts[i] + 1 + j.
    """

    counts: array[int] = field(default_factory=_ints)
    tokens: array[int] = field(default_factory=_ints)
    logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    """Vectors of pooled sequences: little-endian f32; empty if a value is not finite."""
    seconds: float = field(default=0.0, compare=False)
    """Compute time in seconds; 0 if not measured."""
    masks: tuple[int, float, float] = field(default=(0, 0.0, 0.0), compare=False)
    """Token masks since the last result: number computed, seconds spent beside the steps, and
    seconds that rows waited for them.
    """
