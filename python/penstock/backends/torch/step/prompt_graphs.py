"""CUDA graphs of steps with prompts, one per step size in tokens (`captures.py`).

A step of 128 tokens computes for a few milliseconds, which is less than its hundreds of kernel
launches take. All kernels read rows, tables and lengths from device memory, which one copy fills
for each step. Grids are sized for the maximum, and programs without work exit at once. A graph can
therefore run any mixture of decodes and prompt chunks. Steps larger than the largest graph use no
graph: they compute for longer than their launches take, and padding would slow them down.

A graph ends before the head, in memory that all graphs write to. The few rows to sample are read
from there by separate graphs, one per number of rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from penstock.backends.torch.inputs import Inputs, write
from penstock.backends.torch.kernels import Spans
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.sampling.sampling import Draws
from penstock.backends.torch.sampling.slots import DeviceSlots
from penstock.backends.torch.step.captures import Graph, Key
from penstock.backends.torch.step.graphs import BUCKETS, draw_all, sizes_up_to
from penstock.core import StepPlan

TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 640, 768, 1024)
"""Sizes of the graphs in tokens (rows). Padding costs little in the small ones, which are bound by
reading the weights; above 384, at most a quarter is padding.
"""


class PromptGraphs:
    def __init__(self, model: Model, slots: DeviceSlots, tokens: int) -> None:
        """`tokens`: maximum tokens of a step."""
        self._model = model
        self._slots = slots
        self._sizes = sizes_up_to(tokens, TOKENS)
        self._draw_sizes = sizes_up_to(slots.padding, BUCKETS)
        self.most_draws = self._draw_sizes[-1]
        most, device = self._sizes[-1], slots.last.device
        self._states = torch.empty(most, model.spec.hidden, dtype=model.dtype, device=device)
        # The columns for sampling end where the columns of the step begin, so that one copy writes
        # both.
        self._begin = 3 * self.most_draws
        numbers = self._begin + sum(size for size, _ in self._columns(most, 0))
        self._numbers = torch.zeros(numbers, dtype=torch.int32, device=device)
        self._graphs: dict[Key, Graph] = {}

    def takes(self, plan: StepPlan) -> bool:
        return len(plan.tokens) <= self._sizes[-1]

    def needed(self, plan: StepPlan, draws: int) -> list[Graph]:
        """The graphs that `run` replays, or, if `draws` (rows to sample) is not 0, those that
        `draw` replays.
        """
        found = [self.graph((self._tokens(plan), False))]
        return [*found, self.graph((self._drawn(draws), True))] if draws else found

    def sizes(self) -> Iterator[tuple[int, Key]]:
        for tokens in self._sizes:
            yield tokens, (tokens, False)
        for rows in self._draw_sizes:
            yield rows, (rows, True)

    def largest(self) -> Graph:
        return self.graph((self._sizes[-1], False))

    def results(self) -> list[int]:
        states = self._states.numel() * self._states.itemsize
        drawn = [4 * rows for rows in self._draw_sizes]
        return [states, *[0] * (len(self._sizes) - 1), *drawn]

    def forget(self) -> None:
        self._graphs.clear()

    def run(self, plan: StepPlan, order: Sequence[int]) -> Tensor:
        """Residual stream [tokens, hidden] after the last layer, with sequences in `order`, one-row
        sequences first. It is in memory shared by all graphs: valid until the next step.
        """
        return self._replayed(plan, order, array("i"))

    def draw(self, plan: StepPlan, order: Sequence[int], draws: Draws) -> Tensor:
        """Sampled tokens of `draws` (at most `most_draws`), int32, in the graph's memory, also
        stored as each slot's last token. The caller copies them to the host before the next step.
        """
        count = len(draws.rows)
        rows, columns = self._drawn(count), array("i")
        given = (draws.rows, draws.slots, draws.positions)
        for column, fill in zip(given, (0, self._slots.padding, 0), strict=True):
            columns += array("i", column) + array("i", [fill]) * (rows - count)
        self._replayed(plan, order, columns)
        return self.graph((rows, True)).run()[:count]

    def _replayed(self, plan: StepPlan, order: Sequence[int], draws: array[int]) -> Tensor:
        tokens = self._tokens(plan)
        graph = self.graph((tokens, False))
        self._write(plan, order, tokens, draws)
        return graph.run()[: len(plan.tokens)]

    def _tokens(self, plan: StepPlan) -> int:
        return next(size for size in self._sizes if size >= len(plan.tokens))

    def _drawn(self, draws: int) -> int:
        return next(size for size in self._draw_sizes if size >= draws)

    def _write(self, plan: StepPlan, order: Sequence[int], tokens: int, draws: array[int]) -> None:
        joined, begin = draws[:], self._begin - len(draws)
        sized = self._columns(tokens, len(plan.tokens))
        for column, (size, fill) in zip(columns_of(plan, order), sized, strict=True):
            joined += column + array("i", [fill]) * (size - len(column))
        write(joined, self._numbers[begin : begin + len(joined)])

    def _columns(self, tokens: int, count: int) -> Iterator[tuple[int, int]]:
        """For each column of `columns_of`: its length in the graph of `tokens` tokens, and the
        value that fills it up behind a plan of `count` tokens. The last sequence holds the padding
        rows. It has a slot without blocks and no length, so none of its results are stored.
        """
        sequences = min(tokens, self._slots.padding) + 1
        yield from ((tokens, 0), (tokens, 0), (tokens, sequences - 1))
        yield from ((sequences, self._slots.padding), (sequences, 0), (sequences, 0))
        yield from ((sequences + 1, count), (1, 0))

    def graph(self, key: Key) -> Graph:
        if key not in self._graphs:
            rows, draws = key
            self._graphs[key] = self._of_draws(rows) if draws else self._of_tokens(rows)
        return self._graphs[key]

    def _of_tokens(self, tokens: int) -> Graph:
        sizes = [size for size, _ in self._columns(tokens, 0)]
        columns = self._numbers[self._begin : self._begin + sum(sizes)].split(sizes)

        def clear() -> None:
            self._write(StepPlan(0), (), tokens, array("i"))

        def work() -> Tensor:
            inputs = inputs_of(columns)
            tables = self._slots.tables(inputs.slots, None)
            x = self._model.forward(inputs, tables, self._slots.last)
            return self._states[:tokens].copy_(x)

        return Graph(tokens, work, clear)

    def _of_draws(self, rows: int) -> Graph:
        columns = self._numbers[self._begin - 3 * rows : self._begin].view(3, rows)

        def clear() -> None:
            columns.zero_()[1] = self._slots.padding

        def work() -> Tensor:
            own, slots, positions = columns.unbind(0)
            x = self._states.index_select(0, own)
            return draw_all(self._model, self._slots, x, slots, positions)

        return Graph(rows, work, clear)


def columns_of(plan: StepPlan, order: Sequence[int]) -> Iterator[array[int]]:
    """Tokens, positions and sequences of the rows; slots, starts and lengths of the sequences; row
    offsets of the sequences (indptr); number of one-row sequences.
    """
    lengths, starts = plan.lengths, plan.starts
    ends = array("i", accumulate(lengths, initial=0))
    tokens, positions, sequences = plan.tokens, array("i"), array("i")
    if list(order) != list(range(len(order))):
        tokens = array("i")
        for i in order:
            tokens += plan.tokens[ends[i] : ends[i + 1]]
    for at, i in enumerate(order):
        positions.extend(range(starts[i], starts[i] + lengths[i]))
        sequences.extend([at] * lengths[i])
    yield from (tokens, positions, sequences)
    yield array("i", (plan.slots[i] for i in order))
    yield array("i", (starts[i] for i in order))
    yield array("i", (starts[i] + lengths[i] for i in order))
    yield array("i", accumulate((lengths[i] for i in order), initial=0))
    yield array("i", [sum(length == 1 for length in lengths)])


def inputs_of(columns: Sequence[Tensor]) -> Inputs:
    """Inputs of a step whose number of tokens and sequences is known only on the device."""
    tokens, positions, sequences, slots, starts, lengths, offsets, singles = columns
    return Inputs(
        tokens=tokens,
        positions=positions,
        sequences=sequences,
        slots=slots,
        starts=starts,
        lengths=lengths,
        offsets=offsets,
        decodes=len(slots) - 1,
        spans=Spans(offsets, singles),
        most_rows=len(tokens),
        blocks=None,
    )
