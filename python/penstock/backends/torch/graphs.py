"""Decode steps as CUDA graphs: one for each size of batch, captured when it is first needed. Those
with prompts are in `prompt_graphs.py`.

All that a graph reads lies in memory that stays: the columns of its rows, and the tables by slot,
which have sampling parameters and the tokens sampled last too. A step that wants nothing but tokens
is one graph, from the columns to the tokens; that of a step with rules, grammars, log-probabilities
or scores ends before the head. Rows of padding have a slot of their own, which has no blocks;
nothing of them is stored.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from penstock.backends.torch.inputs import Inputs, write
from penstock.backends.torch.kernels import sample
from penstock.backends.torch.model import Model
from penstock.backends.torch.slots import DeviceSlots
from penstock.core import StepPlan
from penstock.core.plan import NOT_FINITE

if TYPE_CHECKING:
    from penstock.backends.torch.flash import FlashInfer, Planned

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
"""Rows of the graphs. Rows of padding cost little where reading the weights costs most."""

log = logging.getLogger(__name__)


def sizes_up_to(most: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Those that are smaller than `most`, and the next one."""
    smaller = sum(size < most for size in sizes)
    return tuple(sizes[: smaller + 1])


class Capture(Protocol):
    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record `work`. What it returns repeats it on the same memory, result included. It knows
        addresses only: the caller keeps `work`, and with it all that was read.
        """


@dataclass(frozen=True, slots=True)
class Graph:
    columns: Tensor
    """[4, rows] int32: tokens, slots, positions and lengths."""
    work: Callable[[], Tensor]
    """What was recorded. It refers to all tensors that the graph reads and did not make."""
    replay: Callable[[], Tensor]
    planned: Planned | None
    """Attention that is planned before each replay."""


class DecodeGraphs:
    def __init__(
        self,
        model: Model,
        slots: DeviceSlots,
        capture: Capture,
        flash: FlashInfer | None = None,
    ) -> None:
        self._model = model
        self._slots = slots
        self._capture = capture
        self._flash = flash
        self._sizes = sizes_up_to(slots.padding, BUCKETS)
        self._graphs: dict[tuple[int, bool], Graph] = {}
        """By rows, and whether tokens are drawn."""

    def takes(self, plan: StepPlan) -> bool:
        """Whether each sequence of the plan has one row, and there are not too many."""
        count = len(plan.slots)
        return count == len(plan.tokens) <= BUCKETS[-1]

    def run(self, plan: StepPlan) -> Tensor:
        """The residual stream [sequences, hidden] after the last layer, in memory of the graph."""
        return self._replayed(plan, draws=False)

    def draw(self, plan: StepPlan) -> Tensor:
        """Tokens [sequences] int32, kept as those sampled last, in memory of the graph: they are
        copied to the host before the next step is launched.
        """
        return self._replayed(plan, draws=True)

    def prepare(self) -> None:
        """Capture that of one row, which a first request would wait for."""
        self._graph(1, draws=True)

    def capture_largest(self) -> Graph:
        return self._captured(self._sizes[-1], draws=True)

    def results(self) -> list[int]:
        row = self._model.spec.hidden * int(self._model.dtype.itemsize)
        return [size for rows in self._sizes for size in (4 * rows, rows * row)]

    def forget(self) -> None:
        """End the graphs, to which their own work refers: no collection may come before the end."""
        self._graphs.clear()

    def _graph(self, rows: int, *, draws: bool) -> Graph:
        if (rows, draws) not in self._graphs:
            self._graphs[rows, draws] = self._captured(rows, draws=draws)
        return self._graphs[rows, draws]

    def _replayed(self, plan: StepPlan, *, draws: bool) -> Tensor:
        count = len(plan.slots)
        rows = next(bucket for bucket in BUCKETS if bucket >= count)
        padding = rows - count
        zeros = array("i", [0]) * padding
        unused = array("i", [self._slots.padding]) * padding
        lengths = array("i", [start + 1 for start in plan.starts])
        joined = plan.tokens + zeros + plan.slots + unused + plan.starts + zeros + lengths + zeros
        graph = self._graph(rows, draws=draws)
        write(joined, graph.columns.view(-1))
        if graph.planned is not None:
            starts, counts = [*plan.starts, *[0] * padding], [1] * count + [0] * padding
            tables = self._slots.tables(graph.columns[1], None)
            graph.planned.plan(starts, counts, tables.unbind(1))
        return graph.replay()[:count]

    def _captured(self, rows: int, *, draws: bool) -> Graph:
        # Rows of padding: a capture computes too, and must not keep a token for a sequence.
        columns = torch.zeros(4, rows, dtype=torch.int32, device=self._slots.last.device)
        columns[1] = self._slots.padding
        # Made before the capture: sizes are the graph's, not the step's.
        offsets = torch.arange(rows + 1, dtype=torch.int32, device=columns.device)
        planned = None
        if self._flash is not None:
            tables = self._slots.tables(columns[1], None).unbind(1)
            planned = self._flash.of_graph(rows, tables)
            planned.plan([0] * rows, [0] * rows, tables)

        def work() -> Tensor:
            inputs = decode_inputs(columns, offsets)
            inputs = replace(inputs, planned=planned)
            tables = self._slots.tables(inputs.slots, None)
            x = self._model.forward(inputs, tables, self._slots.last)
            if not draws:
                return x
            # A length is the position of the token that follows.
            return draw_all(self._model, self._slots, x, inputs.slots, inputs.lengths)

        return Graph(columns, work, recorded(self._capture, self._model, work, rows), planned)


def recorded(
    capture: Capture, model: Model, work: Callable[[], Tensor], rows: int
) -> Callable[[], Tensor]:
    """Repeats `work`, a step of `rows`: by a graph, or by launches where memory is short. A rank of
    several raises in that case, because the others wait in the sums that it left out.
    """
    try:
        return capture(work)
    except RuntimeError as error:
        if not ran_out(error) or model.ranks.group is not None:
            raise
    log.warning(
        "a graph of %d rows has too little memory: steps of this size are launched kernel by "
        "kernel, which takes longer. Lower --kv-cache-memory-bytes or --max-num-seqs",
        rows,
    )
    return work


def ran_out(error: BaseException | None) -> bool:
    """Whether it is for want of memory, or came of an error that was. An end of a capture may hide
    the error that ended it.
    """
    if error is None:
        return False
    own = isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)
    return own or ran_out(error.__context__)


def decode_inputs(columns: Tensor, offsets: Tensor) -> Inputs:
    """The inputs of one row for each sequence; the length of one of padding is 0."""
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
    """A token of each row, by the parameters of its slot alone, for the position where it goes; on
    the device, and kept there.
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


def capture_cuda(
    work: Callable[[], Tensor], pool: tuple[int, int] | None = None
) -> Callable[[], Tensor]:
    """A CUDA graph on the current stream, after a run that compiles what is to be compiled. What it
    makes lies in `pool`, which the graphs of one stream share: what they have done with, the next
    one writes over. Results of a graph are read before another one is replayed. None: a pool of its
    own.

    `torch.cuda.graph` would give back the memory that torch keeps for steps, each time.
    """
    work()
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads may allocate and wait meanwhile.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        result = work()
    finally:
        graph.capture_end()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
