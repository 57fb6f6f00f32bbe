"""Plans of one sequence, for tests without a scheduler. Each carries the whole block table, the
same one for each of `groups`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.core import Registration, StepPlan
from tests.fakes.sampling import encode


def registration(slot: int = 0, *, logprobs: int = -1, prompt_logprobs: int = -1) -> Registration:
    """A greedy sequence."""
    return Registration(slot, encode(logprobs=logprobs), prompt_logprobs)


def one_sequence(
    step: int,
    tokens: Sequence[int],
    start: int,
    blocks: Sequence[int],
    *,
    new: Registration | None = None,
    slot: int = 0,
    sample: bool = True,
    targets: Sequence[int] = (),
    groups: int = 1,
) -> StepPlan:
    return StepPlan(
        step,
        [new] if new else [],
        slots=array("i", [slot]),
        starts=array("i", [start]),
        lengths=array("i", [len(tokens)]),
        sample=array("b", [sample]),
        tokens=array("i", tokens),
        targets=array("i", targets),
        kept=array("i", [0]) * groups,
        added_offsets=array("i", [len(blocks) * group for group in range(groups + 1)]),
        added=array("i", blocks) * groups,
    )
