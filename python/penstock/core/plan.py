"""Input and output of one model step: the plan, and the result.

Columns are `array.array`: contiguous, and read by Rust through the buffer protocol.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core.pooling import Pooling

LAST_SAMPLED = -1
"""In a plan, a placeholder for the token that the sequence's slot sampled last. Only the device
knows this token so far.
"""
NOT_FINITE = -1
"""In a result, replaces a token: the hidden state of the sequence is not finite."""
NO_TOKEN = -2
"""In a result, replaces a token: the grammar of the sequence became too complex."""
LATE_MASK = -3
"""In a result, the only token of a sequence: nothing was sampled, because the grammar mask was not
ready in time. The row must be computed again, as must a following row that was planned ahead.
"""
NO_STATE = -1
"""In a plan, instead of a state slot to read: the sequence starts, and its state is zero."""
NO_BLOCK = -1
"""Block table entry whose tokens have left the group's sliding window."""

MAX_PLAN_GRAMMAR_BYTES = 256 * 1024 + 1
"""Maximum total size of a plan's grammars in bytes: enough for one grammar of the largest size."""

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
    """A sequence that takes a slot, with the parameters that the backend keeps. Later plans refer
    to the slot only.
    """

    slot: int
    sampling: bytes
    """Encoded sampling parameters, opaque to the engine."""
    prompt_logprobs: int = -1
    """Number of alternatives whose log-probabilities are returned with each prompt token; -1: no
    log-probabilities of the prompt.
    """
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
    """The work of all ranks in one step, as columns: n sequences in G KV groups.

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
    """[n] 1 if tokens are to be sampled after the last 1 + drafts tokens, or the vector of a pooled
    sequence is to be returned; else 0.
    """
    drafts: array[int] = field(default_factory=_ints)
    """[n] Number of draft tokens at the end of the sequence's tokens; empty if no
    sequence has any.
    """
    tokens: array[int] = field(default_factory=_ints)
    """[sum of lengths] Tokens to compute, sequence after sequence. LAST_SAMPLED is valid only as a
    sequence's first token.
    """
    targets: array[int] = field(default_factory=_ints)
    """Same length as `tokens`, or empty: the prompt token that follows each token, or -1 if the
    log-probability of that prompt token is not requested.
    """
    kept: array[int] = field(default_factory=_ints)
    added_offsets: array[int] = field(default_factory=lambda: array("i", (0,)))
    added: array[int] = field(default_factory=_ints)
    grammars: list[bytes] = field(default_factory=list)
    """Encoded grammars that the registrations refer to."""
    state_from: array[int] = field(default_factory=_ints)
    """[n] State slot with the state after the tokens before `starts`; NO_STATE at position 0.
    Empty, as are the following four columns, if the model has no sequence state.
    """
    state_to: array[int] = field(default_factory=_ints)
    """[n] State slot for the state after the sequence's last token; may be its `state_from`. All
    other written slots are distinct, and no other sequence of the plan reads a written slot.
    """
    save_offsets: array[int] = field(default_factory=_ints)
    """[n + 1] Entries save_offsets[i] .. save_offsets[i + 1] - 1 of the next columns are of
    sequence i.
    """
    save_rows: array[int] = field(default_factory=_ints)
    """Numbers of the sequence's tokens, from 1 and less than its length, ascending: after so many
    the state is also written to a slot of `save_slots`.
    """
    save_slots: array[int] = field(default_factory=_ints)


@dataclass(slots=True)
class StepResult:
    """Output of a step. Dicts are keyed by the sequence's index in the plan. The last token of a
    sequence may be NOT_FINITE or NO_TOKEN; LATE_MASK, if present, is its only token.

    `counts[i]` is 0 without `sample` and for pooled sequences, else 1 + the number of accepted
    drafts. `tokens` has `counts[i]` tokens for each sequence, concatenated. `prompt_logprobs[i][j]`
    is for the prompt token at position starts[i] + 1 + j.
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
    """Token masks since the last result: number computed, seconds of thread time for computing
    them, and seconds that rows waited for masks.
    """
