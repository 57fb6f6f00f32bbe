"""CUDA graphs of decode steps: for each batch size, one graph that samples tokens and one that does
not. `captures.py` decides when to capture; `prompt_graphs.py` has the graphs of steps with prompts.

All inputs of a graph are in persistent memory: the columns of its rows, and the tables by slot
(block tables, sampling parameters, last sampled tokens). If a step needs nothing but tokens, its
graph covers everything from the columns to the tokens. With logit processors, grammars,
log-probabilities or scores, the graph ends before the head. Padding rows use a reserved slot
without blocks, and none of their results are stored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from penstock.backends.torch.inputs import Inputs, write
from penstock.backends.torch.kernels import sample
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.sampling.slots import DeviceSlots
from penstock.backends.torch.step.captures import Graph, Key
from penstock.backends.torch.step.flash import FlashInfer
from penstock.core import StepPlan
from penstock.core.plan import NOT_FINITE

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
"""Batch sizes (numbers of sequences) of the graphs. Padding is cheap, because decode is bound by
reading the weights.
"""
RARE = 1 << 20
"""Added to the priority number of graphs without sampling, which few steps need, so that they are
captured last.
"""


def sizes_up_to(most: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The entries of `sizes` (ascending) that are below `most`, and the next one."""
    smaller = sum(size < most for size in sizes)
    return tuple(sizes[: smaller + 1])


class DecodeGraphs:
    def __init__(self, model: Model, slots: DeviceSlots, flash: FlashInfer | None = None) -> None:
        self._model = model
        self._slots = slots
        self._flash = flash
        self._sizes = sizes_up_to(slots.padding, BUCKETS)
        self._graphs: dict[Key, Graph] = {}
        self._columns: dict[Key, Tensor] = {}
        """Inputs of each graph, [4, rows] int32: tokens, slots, positions and lengths."""

    def takes(self, plan: StepPlan) -> bool:
        """True if each sequence of the plan has one row, and the batch fits into the largest
        graph.
        """
        count = len(plan.slots)
        return count == len(plan.tokens) <= BUCKETS[-1]

    def needed(self, plan: StepPlan, *, draws: bool) -> list[Graph]:
        """The graph that `run` or `draw` replays."""
        return [self.graph((self._rows(plan), draws))]

    def run(self, plan: StepPlan) -> Tensor:
        """Residual stream [sequences, hidden] after the last layer, in the graph's memory."""
        return self._replayed(plan, draws=False)

    def draw(self, plan: StepPlan) -> Tensor:
        """Sampled tokens [sequences] int32 in the graph's memory, also stored as each slot's last
        token. The caller copies them to the host before it launches the next step.
        """
        return self._replayed(plan, draws=True)

    def sizes(self) -> Iterator[tuple[int, Key]]:
        for rows in self._sizes:
            yield rows, (rows, True)
            yield RARE + rows, (rows, False)

    def largest(self) -> Graph:
        return self.graph((self._sizes[-1], True))

    def results(self) -> list[int]:
        row = self._model.spec.hidden * int(self._model.dtype.itemsize)
        return [size for rows in self._sizes for size in (4 * rows, rows * row)]

    def forget(self) -> None:
        self._graphs.clear()
        self._columns.clear()

    def graph(self, key: Key) -> Graph:
        if key not in self._graphs:
            self._graphs[key] = self._made(*key)
        return self._graphs[key]

    def _rows(self, plan: StepPlan) -> int:
        return next(bucket for bucket in BUCKETS if bucket >= len(plan.slots))

    def _replayed(self, plan: StepPlan, *, draws: bool) -> Tensor:
        count, rows = len(plan.slots), self._rows(plan)
        padding = rows - count
        zeros = array("i", [0]) * padding
        unused = array("i", [self._slots.padding]) * padding
        lengths = array("i", [start + 1 for start in plan.starts])
        joined = plan.tokens + zeros + plan.slots + unused + plan.starts + zeros + lengths + zeros
        graph, columns = self.graph((rows, draws)), self._columns[rows, draws]
        write(joined, columns.view(-1))
        if self._flash is not None:
            starts, counts = [*plan.starts, *[0] * padding], [1] * count + [0] * padding
            tables = self._slots.tables(columns[1], None).unbind(1)
            self._flash.of_graph(rows, tables).plan(starts, counts, tables)
        return graph.run()[:count]

    def _made(self, rows: int, draws: bool) -> Graph:
        columns = torch.zeros(4, rows, dtype=torch.int32, device=self._slots.last.device)
        columns[1] = self._slots.padding
        self._columns[rows, draws] = columns
        # Created before the capture, with the graph's size, which may exceed the step's.
        offsets = torch.arange(rows + 1, dtype=torch.int32, device=columns.device)
        planned = None
        if self._flash is not None:
            planned = self._flash.of_graph(rows, self._slots.tables(columns[1], None).unbind(1))

        def clear() -> None:
            columns.zero_()[1] = self._slots.padding
            if planned is not None:
                tables = self._slots.tables(columns[1], None).unbind(1)
                planned.plan([0] * rows, [0] * rows, tables)

        def work() -> Tensor:
            inputs = decode_inputs(columns, offsets)
            inputs = replace(inputs, planned=planned)
            tables = self._slots.tables(inputs.slots, None)
            x = self._model.forward(inputs, tables, self._slots.last)
            if not draws:
                return x
            # The length, which includes this step, is the position of the token to sample.
            return draw_all(self._model, self._slots, x, inputs.slots, inputs.lengths)

        return Graph(rows, work, clear)


def decode_inputs(columns: Tensor, offsets: Tensor) -> Inputs:
    """Inputs with one row per sequence; padding has length 0."""
    tokens, slots, positions, lengths = columns.unbind(0)
    return Inputs(
        tokens=tokens,
        positions=positions,
        sequences=offsets[:-1],
        slots=slots,
        starts=positions,
        lengths=lengths,
        offsets=offsets,
        decodes=len(tokens),
        spans=None,
        most_rows=1,
        blocks=None,
    )


def draw_all(
    model: Model, device: DeviceSlots, x: Tensor, slots: Tensor, positions: Tensor
) -> Tensor:
    """Sample a token [rows] int32 for each row of the residual stream `x`, using only the
    parameters of its slot. `positions` are the positions of these tokens. The tokens stay on the
    device, and are stored as each slot's last token.
    """
    logits, drawn = model.raw_logits(x), torch.empty_like(slots)
    if logits is not None:
        rows = (device.sampling, slots, positions)
        kept = {"states": x, "instead": NOT_FINITE, "last": device.last}
        drawn = sample(logits, *rows, softcap=model.spec.final_softcap or 0.0, **kept)
    if model.ranks.group is not None:
        drawn = model.ranks.share(drawn)
        device.last.index_copy_(0, slots.long(), drawn)
    return drawn
