"""CUDA graphs of steps, captured behind the start: one in a pause of the engine, smallest first, or
before a step that needs one again, one for each step.

Until it is captured the work of a graph is launched kernel by kernel, over the same rows of padding
and the same memory, so a step has the same bits before and after. What all graphs take is kept free
before KV pools are sized (`measuring.py`). Ranks of a stage have the same plans, pauses too, and
capture the same graphs between the same steps: a capture computes, and its sums need all of them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from penstock.backends.torch.model import Model

if TYPE_CHECKING:
    from penstock.backends.torch.flash import Planned

Key = tuple[int, bool]
"""Rows of a graph, and whether it draws tokens."""

log = logging.getLogger(__name__)


class Capture(Protocol):
    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record `work`. What it returns repeats it on the same memory, result included. It knows
        addresses only: the caller keeps `work`, and with it all that was read.
        """


@dataclass(slots=True)
class Graph:
    rows: int
    work: Callable[[], Tensor]
    """What is recorded. It refers to all tensors that the graph reads and did not make."""
    clear: Callable[[], None]
    """Leaves nothing but rows of padding to `work`: a capture computes too, and must not keep a
    token for a sequence, nor write to its blocks.
    """
    planned: Planned | None = None
    """Attention that is planned before each run."""
    replay: Callable[[], Tensor] | None = None
    """None before the capture."""
    used: bool = False

    def run(self) -> Tensor:
        self.used = True
        return self.work() if self.replay is None else self.replay()


class Graphs(Protocol):
    """Those of one kind of step."""

    def sizes(self) -> Iterator[tuple[int, Key]]:
        """All that steps may need; those with lower numbers are captured first."""

    def graph(self, key: Key) -> Graph:
        """The same one each time."""

    def largest(self) -> Graph:
        """The one that computes with the most memory."""

    def results(self) -> list[int]:
        """Bytes of what each graph leaves."""

    def forget(self) -> None:
        """As that of `Captures`."""


class Captures:
    def __init__(
        self, model: Model, capture: Capture, kinds: Sequence[Graphs], *, logged: bool = True
    ) -> None:
        """`logged`: the log says when all are captured."""
        self._logged = logged
        self._model = model
        self._capture = capture
        self._kinds = kinds
        found = [(at, key, kind) for kind in kinds for at, key in kind.sizes()]
        self._left = deque(sorted(found, key=lambda each: each[:2]))
        self._all = len(found)
        self._seconds: list[float] = []

    def __len__(self) -> int:
        """Graphs of all kinds, captured or not."""
        return self._all

    @property
    def complete(self) -> bool:
        return len(self._seconds) == self._all

    def capture_all(self) -> None:
        while not self.complete:
            self.capture_next()

    def capture_next(self) -> None:
        """Capture a graph, if one is left."""
        while self._left:
            _, key, kind = self._left.popleft()
            if self._captured(kind.graph(key)):
                return

    def capture_again(self, needed: Sequence[Graph]) -> None:
        """Capture the first of what a step needs that a step before it needed too."""
        for graph in needed:
            if graph.used and self._captured(graph):
                return

    def largest(self) -> list[Graph]:
        """The one of each kind that computes with the most memory."""
        return [kind.largest() for kind in self._kinds]

    def results(self) -> list[int]:
        """Bytes of what each graph leaves."""
        return [size for kind in self._kinds for size in kind.results()]

    def replay(self, graph: Graph) -> Callable[[], Tensor]:
        """That of a graph, captured."""
        self._captured(graph)
        assert graph.replay is not None
        return graph.replay

    def forget(self) -> None:
        """End the graphs, to which their own work refers: no collection may come before the end."""
        for kind in self._kinds:
            kind.forget()

    def _captured(self, graph: Graph) -> bool:
        """Capture it; False where it is."""
        if graph.replay is not None:
            return False
        began = time.perf_counter()
        graph.clear()
        graph.replay = recorded(self._capture, self._model, graph.work, graph.rows)
        self._seconds.append(time.perf_counter() - began)
        if self.complete and self._logged:
            took = (self._all, sum(self._seconds), max(self._seconds) * 1e3)
            log.info("%d CUDA graphs captured in %.1f s, each in at most %.0f ms", *took)
        return True


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
