"""Pooling: the last state after the final norm, the mean of all states, or the output of the
classification head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.sampling.slots import Slot, Slots
from penstock.core import StepPlan
from penstock.core.pooling import Pooling


@dataclass(frozen=True, slots=True)
class Pooled:
    """The rows of one pooled sequence in a step."""

    sequence: int
    """Index in the plan."""
    slot: Slot
    rows: slice
    """The sequence's rows in the device's batch."""
    ends: bool
    tokens: int
    """Number of tokens of the sequence so far, including this step."""


def wanted_vectors(plan: StepPlan, slots: Slots, firsts: Sequence[int]) -> list[Pooled]:
    """The pooled sequences of a plan. `firsts`: each sequence's first row in the device's batch."""
    found = []
    for i, number in enumerate(plan.slots):
        slot, length = slots[number], plan.lengths[i]
        if slot.pooling != Pooling.NONE:
            rows = slice(firsts[i], firsts[i] + length)
            tokens = plan.starts[i] + length
            found.append(Pooled(i, slot, rows, bool(plan.sample[i]), tokens))
    return found


def vectors(
    wanted: Sequence[Pooled], x: Tensor, final: Callable[[Tensor], Tensor], score: Tensor | None
) -> list[Tensor]:
    """f32 vectors of the sequences that end in this step, in plan order. `x`: the residual stream
    [rows, hidden]; `final`: the final norm; `score`: the classification head, if there is one.
    """
    made = []
    for each in wanted:
        if each.slot.pooling == Pooling.MEAN:
            total = final(x[each.rows]).double().sum(0)
            each.slot.total = total if each.slot.total is None else each.slot.total + total
            vector = each.slot.total / each.tokens
        else:
            vector = final(x[each.rows][-1:])[0].double()
        if each.ends:
            made.append((vector if score is None else score.double() @ vector).float())
    return made


def vector_bytes(wanted: Sequence[Pooled], made: Sequence[Tensor]) -> dict[int, bytes]:
    """f32 bytes of each ended sequence's vector, by index of the sequence in the plan; empty for a
    vector that is not finite.
    """
    ended = (each.sequence for each in wanted if each.ends)
    return {
        sequence: vector.numpy(force=True).tobytes() if torch.isfinite(vector).all() else b""
        for sequence, vector in zip(ended, made, strict=True)
    }
