"""One step of the model: what to compute and what came of it.

Columns are `array.array`: stdlib, contiguous, read by Rust through the buffer protocol, `tobytes()`
for a remote rank.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

LogprobRow = tuple[float, int, list[tuple[int, float]]]
"""Log-probability of a token, its rank (1 = most likely), and the best (token id, log-probability)
pairs.
"""


def _ints() -> array[int]:
    return array("i")


def _bytes() -> array[int]:
    return array("b")


@dataclass(frozen=True, slots=True)
class SlotParams:
    """Sampling state of a sequence, registered once when it takes a slot; later steps name the slot
    only.
    """

    slot: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    choice: int
    logprobs: int
    prompt_logprobs: int


@dataclass(slots=True)
class StepPlan:
    """What every rank computes in one step. `n` sequences, one entry each; filled by the scheduler.

    `blocks[block_offsets[i]:block_offsets[i + 1]]` is the block table of sequence i and covers its
    positions 0 .. starts[i] + lengths[i] - 1. `targets` is empty, or has an entry for each token:
    the prompt token that follows it, or -1 where no log-probability is wanted.
    """

    step: int
    registrations: list[SlotParams] = field(default_factory=list)
    slots: array[int] = field(default_factory=_ints)
    starts: array[int] = field(default_factory=_ints)
    lengths: array[int] = field(default_factory=_ints)
    tokens: array[int] = field(default_factory=_ints)
    targets: array[int] = field(default_factory=_ints)
    sample: array[int] = field(default_factory=_bytes)
    blocks: array[int] = field(default_factory=_ints)
    block_offsets: array[int] = field(default_factory=lambda: array("i", (0,)))


@dataclass(slots=True)
class StepResult:
    """What a step gave; filled by the executor. Rows are keyed by the sequence's index in the plan.

    `prompt_logprobs[i][j]` belongs to the prompt token at position starts[i] + 1 + j.
    """

    counts: array[int] = field(default_factory=_ints)
    tokens: array[int] = field(default_factory=_ints)
    logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
