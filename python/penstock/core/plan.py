"""One step of the model: what to compute, and what came of it.

Columns are `array.array`: contiguous, and read by Rust through the buffer protocol.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core.pooling import Pooling

LAST_SAMPLED = -1
"""Stands in a plan for the token that the slot sampled last, which only the device knows yet."""
NOT_FINITE = -1
"""Stands in a result for the token of a sequence whose hidden state is not finite."""
NO_TOKEN = -2
"""Stands in a result for a token of a sequence whose grammar became too complex."""
LATE_MASK = -3
"""Stands in a result alone, for a token that was not drawn because the mask of the sequence's
grammar is late. The row is to be computed again, and so is one made ahead that follows it.
"""
NO_BLOCK = -1
"""Block table entry of tokens that are behind the window of the group."""

MAX_PLAN_GRAMMAR_BYTES = 256 * 1024 + 1
"""Bytes of all grammars of a plan together: one of the largest fits."""

LogprobRow = tuple[float, int, list[tuple[int, float]]]
"""Log-probability of a token, its rank (1 = most likely), and the best (token id, log-probability)
pairs.
"""


def _ints() -> array[int]:
    return array("i")


def _bytes() -> array[int]:
    return array("b")


@dataclass(frozen=True, slots=True)
class Registration:
    """State of a sequence that takes a slot; later plans name the slot only."""

    slot: int
    sampling: bytes
    """Encoded sampling parameters, opaque to the engine."""
    prompt_logprobs: int = -1
    """Alternatives for each prompt token; -1 for no log-probabilities."""
    grammar: int = 0
    """The number of one of the plan's `grammars`, from 1; 0 is none."""
    adapter: int = 0
    history: array[int] = field(default_factory=_ints)
    """Prompt and output so far, where the sampler needs them; else empty."""
    prompt_len: int = 0
    """How many tokens of `history` are the prompt."""
    pooling: int = Pooling.NONE
    """Unless NONE, `sample` asks for the vector of the sequence and for no token."""


@dataclass(slots=True)
class StepPlan:
    """What every rank computes in one step: n sequences in G KV groups.

    A registration resets its slot: block tables are empty, no token was sampled. Block tables are
    kept by slot and changed by deltas. Entry i * G + g of `kept` and `added_offsets` belongs to
    sequence i and group g: the first `kept` entries of the table stay, and
    `added[added_offsets[e]:added_offsets[e + 1]]` follow.
    """

    step: int
    registrations: list[Registration] = field(default_factory=list)
    slots: array[int] = field(default_factory=_ints)
    starts: array[int] = field(default_factory=_ints)
    """[n] Position of the first token computed."""
    lengths: array[int] = field(default_factory=_ints)
    """[n] Tokens computed, drafts included."""
    sample: array[int] = field(default_factory=_bytes)
    """[n] Whether the last 1 + drafts tokens have rows of logits, or the sequence its vector."""
    drafts: array[int] = field(default_factory=_ints)
    """[n], or empty when there are none: how many of the last tokens are drafts."""
    tokens: array[int] = field(default_factory=_ints)
    """[sum of lengths] LAST_SAMPLED may stand only first in a sequence."""
    targets: array[int] = field(default_factory=_ints)
    """As long as `tokens`, or empty: the prompt token that follows each, or -1 where its
    log-probability is not wanted.
    """
    kept: array[int] = field(default_factory=_ints)
    added_offsets: array[int] = field(default_factory=lambda: array("i", (0,)))
    added: array[int] = field(default_factory=_ints)
    grammars: list[bytes] = field(default_factory=list)
    """Encoded grammars of the registrations."""


@dataclass(slots=True)
class StepResult:
    """What a step sampled. Rows are keyed by the sequence's index in the plan; the last token of a
    sequence may be NOT_FINITE or NO_TOKEN, and its only one LATE_MASK.

    `counts[i]` is 0 without `sample` and of a pooled sequence, else 1 + the accepted drafts.
    `prompt_logprobs[i][j]` belongs to the prompt token at position starts[i] + 1 + j.
    """

    counts: array[int] = field(default_factory=_ints)
    tokens: array[int] = field(default_factory=_ints)
    logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    """Those of pooled sequences: f32, little-endian; empty where a number is not finite."""
    seconds: float = field(default=0.0, compare=False)
    """Time of the computation; 0 where it is not measured."""
    masks: tuple[int, float, float] = field(default=(0, 0.0, 0.0), compare=False)
    """Grammars' token masks since the last result: how many were computed, the seconds that took
    beside the steps, and the seconds that rows waited for them.
    """
