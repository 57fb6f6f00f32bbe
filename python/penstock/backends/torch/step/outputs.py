"""Tokens, scores and vectors from the residual stream of a step, on ranks that have the head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.inputs import to_device
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.sampling.grammars import RowMasks, find_masks
from penstock.backends.torch.sampling.pooling import vectors
from penstock.backends.torch.sampling.sampling import (
    HEAD_ROWS,
    Draws,
    Scored,
    draw,
    note_last,
    score,
)
from penstock.backends.torch.sampling.slots import DeviceSlots
from penstock.backends.torch.step.device import Device
from penstock.backends.torch.step.step import Step


@dataclass(frozen=True, slots=True)
class Outputs:
    """Computes the outputs that a plan requests, within work of `device`. The last token of each
    slot is stored in `slots`.
    """

    device: Device
    model: Model
    slots: DeviceSlots

    def compute(self, step: Step, x: Tensor) -> None:
        """Set `step.found` from `x`, the residual stream [rows, hidden] after the last layer."""
        self._draw(step, x, self._masks(step))
        self._score(step, x)
        if step.pooled and self.model.shard.has_head:
            made = vectors(step.pooled, x, self.model.final, self.model.weights.score)
            step.found.vectors = [self.device.to_host(vector) for vector in made]

    def _masks(self, step: Step) -> RowMasks:
        """Grammar masks of the step's rows. While the device computes the step, the results of
        earlier steps are processed, on which the masks depend.
        """
        if not (step.draws.masked or step.draws.reads_output):
            return RowMasks()
        computed = self.device.mark()
        if step.draws.reads_output:
            step.settle_before()
        return find_masks(step.draws.masked, computed)

    def _draw(self, step: Step, x: Tensor, masks: RowMasks) -> None:
        draws = step.draws
        if not draws.rows or not self.model.shard.has_head:
            return
        tokens, scored, parts = [], [], _parts(len(draws.rows))
        # Each sequence has one row, and all rows are in one part, so no gather is needed.
        whole = len(x) == len(draws.rows) == len(step.plan.slots) and len(parts) == 1
        for part in parts:
            drawn, chosen = self._draw_part(draws, part, x, masks, whole=whole)
            tokens.append(drawn)
            if chosen is not None:
                scored.append(chosen)
        drawn = torch.cat(tokens)
        note_last(drawn, draws, self.slots)
        step.found.tokens = self.device.to_host(drawn)
        step.found.drawn = self._joined(scored)

    def _draw_part(
        self, draws: Draws, part: range, x: Tensor, masks: RowMasks, *, whole: bool
    ) -> tuple[Tensor, Scored | None]:
        """Sampled tokens of the rows `part`, and their log-probabilities if requested. `whole`:
        `part` is all rows of `x`, in order.
        """
        own = slice(part.start, part.stop)
        columns = [draws.rows[own], draws.slots[own], draws.positions[own]]
        rows, slots, positions = to_device(columns, x.device)
        states = x if whole else x[rows]
        logits = self.model.logits(states)
        drawn = torch.empty(len(part), dtype=torch.int32, device=x.device)
        if logits is not None:
            finite = states.isfinite().all(1)
            drawn = draw(logits, finite, draws, part, slots, positions, self.slots, masks)
        drawn = self.model.ranks.share(drawn)
        if logits is None or draws.logprobs < 0:
            return drawn, None
        return drawn, score(logits, drawn, draws.logprobs)

    def _score(self, step: Step, x: Tensor) -> None:
        scores, scored = step.scores, []
        if not self.model.shard.has_head:
            return
        for part in _parts(len(scores.rows)):
            own = slice(part.start, part.stop)
            rows, tokens = to_device([scores.rows[own], scores.tokens[own]], x.device)
            found = self._score_part(x[rows], tokens, max(scores.alternatives))
            if found is not None:
                scored.append(found)
        step.found.scored = self._joined(scored)

    def _score_part(self, states: Tensor, tokens: Tensor, alternatives: int) -> Scored | None:
        logits = self.model.logits(states)
        return None if logits is None else score(logits, tokens, alternatives)

    def _joined(self, scored: list[Scored]) -> Scored | None:
        if not scored:
            return None
        one, two, three, four = (
            self.device.to_host(torch.cat(column)) for column in zip(*scored, strict=True)
        )
        return one, two, three, four


def _parts(rows: int) -> list[range]:
    return [range(at, min(rows, at + HEAD_ROWS)) for at in range(0, rows, HEAD_ROWS)]
