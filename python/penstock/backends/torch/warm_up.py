"""Warm-up: steps before the first request, one of them maximal.

Where `memory.step_bytes` counted too little, memory runs out here, with the flags to lower, and not
under load. Kernels are compiled on the way: those of prompts, whose tiles depend on the number of
rows, by prompts of twice as many rows each; those of decode, of which there is a merge for each
number of splits, by steps of one row with wider and wider block tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from penstock.backends.torch.checks import Limits
from penstock.backends.torch.flash import FlashInfer, planned
from penstock.backends.torch.graphs import draw_all
from penstock.backends.torch.inputs import order_of, pack
from penstock.backends.torch.kernels import sample
from penstock.backends.torch.kernels.decode import split_tokens
from penstock.backends.torch.model import Model
from penstock.backends.torch.sampling import HEAD_ROWS
from penstock.backends.torch.slots import DeviceSlots
from penstock.backends.torch.tuning import tune
from penstock.backends.torch.weights import MixtureWeights
from penstock.core import StepPlan

LARGEST_TILE = 128
"""Rows of a tile of attention, at most."""


class Graphs(Protocol):
    def prepare(self) -> None:
        """Capture what the first requests would wait for."""


def warm_up(
    model: Model,
    slots: DeviceSlots,
    limits: Limits,
    flash: FlashInfer | None = None,
    graphs: Sequence[Graphs] = (),
) -> None:
    """Compute a prefill of `limits.tokens` rows and the logits of as many as are drawn at once, and
    capture graphs.

    All ranks of a stage call it. Its sequences lie in the slot of padding, whose block table is all
    zeroes, so it writes to the first block of each KV group, which holds nothing yet.
    """
    with torch.inference_mode():
        _choose(model, limits)
        _step(model, slots, limits, flash, _lengths(limits), None)
        # Behind a step, whose first use of the libraries is none of the products' time.
        tune(model)
        for rows in _prompts(model, limits):
            _step(model, slots, limits, flash, [rows], None)
        for tokens in split_tokens(limits.max_position):
            _step(model, slots, limits, flash, [1], -(-tokens // limits.block_size))
        for each in graphs:
            each.prepare()


def _choose(model: Model, limits: Limits) -> None:
    """The first mixture of codes speaks for all: they have the same shapes."""
    mixtures = (layer.feed_forward for layer in model.weights.layers)
    for own in mixtures:
        if isinstance(own, MixtureWeights) and own.widening is not None:
            own.widening.choose(own, limits.tokens)
            return


def _step(
    model: Model,
    slots: DeviceSlots,
    limits: Limits,
    flash: FlashInfer | None,
    parts: list[int],
    blocks: int | None,
) -> None:
    """`blocks`: entries of the block tables that are read; None: as many as the rows need."""
    plan = StepPlan(
        0,
        slots=array("i", [slots.padding] * len(parts)),
        starts=array("i", [0] * len(parts)),
        lengths=array("i", parts),
        tokens=array("i", [0] * sum(parts)),
    )
    alone = _without_stages(model, len(plan.tokens))
    order = order_of(plan)
    inputs = pack(plan, order, limits.block_size, slots.last.device)
    tables = slots.tables(inputs.slots, blocks or inputs.blocks)
    x = alone.forward(planned(flash, inputs, plan, order, tables), tables, slots.last)
    if model.shard.has_head:
        # Of a request for a vector.
        alone.final(x[:1])
        logits = alone.logits(x[:HEAD_ROWS])
        if logits is not None:
            _draw(logits, slots)
        if parts == [1]:
            # As graphs draw.
            draw_all(alone, slots, x, inputs.slots, inputs.lengths)


def _draw(logits: Tensor, slots: DeviceSlots) -> None:
    """Draw from a copy, as with rules that change the logits."""
    padding = torch.full((len(logits),), slots.padding, dtype=torch.int32, device=logits.device)
    sample(logits.clone(), slots.sampling, padding, torch.zeros_like(padding))


def _prompts(model: Model, limits: Limits) -> list[int]:
    """Rows of a prompt with which each size of a tile is met: of attention up to LARGEST_TILE rows,
    of experts, which share the rows, up to those of a step.
    """
    mixture = any(isinstance(each.feed_forward, MixtureWeights) for each in model.weights.layers)
    most = min(limits.tokens, limits.max_position)
    most = most if mixture else min(most, LARGEST_TILE)
    return [1 << power for power in range(1, most.bit_length())]


def _lengths(limits: Limits) -> list[int]:
    """Rows of the sequences: as few sequences as the longest one allows."""
    whole, rest = divmod(limits.tokens, limits.max_position)
    return [limits.max_position] * whole + [rest] * (rest > 0)


def _without_stages(model: Model, rows: int) -> Model:
    """The model as the only stage: other stages may not have allocated yet."""
    ranks = model.ranks
    before = None if ranks.before is None else Zeroes(rows)
    return replace(model, ranks=replace(ranks, before=before, after=None))


@dataclass(frozen=True, slots=True)
class Zeroes:
    """A stage before that sends zeroes."""

    rows: int

    def receive(self, like: Tensor) -> Tensor:
        return torch.zeros(self.rows, len(like), device=like.device)
