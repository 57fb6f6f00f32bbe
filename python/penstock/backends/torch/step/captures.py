"""Capture of CUDA graphs: when and how. If all kernels were compiled ahead of time, graphs are
captured after start-up: one per idle pause of the engine, smallest first, or before a step that
needs an uncaptured graph for the second time. Otherwise all graphs are captured before the rank is
ready (`backend.py`).

Until its capture, the work of a graph is launched kernel by kernel, with the same padding rows and
the same memory, so a step is bitwise the same before and after. `measuring.py` reserves the memory
of all graphs before it sizes the KV pools. Ranks of a stage get the same plans and pauses, and so
capture the same graphs between the same steps. This matters because a capture also runs the work,
and its all-reduces need all ranks.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.runtime import kind_of, runtime

Key = tuple[int, bool]
"""Identifies a graph among the graphs of one kind: its number of rows, and whether it samples
tokens.
"""

log = logging.getLogger(__name__)


class Capture(Protocol):
    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record `work`. The returned function replays it on the same memory, including the result.
        The recording holds only addresses: the caller must keep `work` and its tensors alive.
        """


@dataclass(slots=True)
class Graph:
    rows: int
    work: Callable[[], Tensor]
    """The function that the graph records. It references all input tensors of the graph."""
    clear: Callable[[], None]
    """Turns all rows of `work` into padding. Called before a capture, which also runs the work and
    must not store a token of a sequence or write to its blocks.
    """
    replay: Callable[[], Tensor] | None = None
    """Replays the captured graph; None before the capture."""
    used: bool = False

    def run(self) -> Tensor:
        self.used = True
        return self.work() if self.replay is None else self.replay()


class Graphs(Protocol):
    """Graphs of one kind of step."""

    def sizes(self) -> Iterator[tuple[int, Key]]:
        """Priority and key of each graph that steps may need; graphs with lower numbers are
        captured first.
        """

    def graph(self, key: Key) -> Graph:
        """The graph of a key, created on first use."""

    def largest(self) -> Graph:
        """The graph that uses the most memory, created on first use."""

    def results(self) -> list[int]:
        """Size in bytes of the result of each graph of `sizes`."""

    def forget(self) -> None:
        """Drop all graphs; see `Captures.forget`."""


class Captures:
    def __init__(
        self, model: Model, capture: Capture, kinds: Sequence[Graphs], *, logged: bool = True
    ) -> None:
        """`logged`: log a line when all graphs are captured."""
        self._logged = logged
        self._model = model
        self._capture = capture
        self._kinds = kinds
        found = [(at, key, kind) for kind in kinds for at, key in kind.sizes()]
        self._left = deque(sorted(found, key=lambda each: each[:2]))
        self._all = len(found)
        self._seconds: list[float] = []

    def __len__(self) -> int:
        """Number of graphs of all kinds, captured or not."""
        return self._all

    @property
    def complete(self) -> bool:
        return len(self._seconds) == self._all

    def capture_all(self) -> None:
        while not self.complete:
            self.capture_next()

    def capture_next(self) -> None:
        """Capture the next graph that is not captured yet, if any is left."""
        while self._left:
            _, key, kind = self._left.popleft()
            if self._captured(kind.graph(key)):
                return

    def capture_again(self, needed: Sequence[Graph]) -> None:
        """Capture the first graph in `needed` that an earlier step already used."""
        for graph in needed:
            if graph.used and self._captured(graph):
                return

    def largest(self) -> list[Graph]:
        """For each kind, the graph that uses the most memory."""
        return [kind.largest() for kind in self._kinds]

    def results(self) -> list[int]:
        """Size in bytes of the result of each graph, over all kinds."""
        return [size for kind in self._kinds for size in kind.results()]

    def replay(self, graph: Graph) -> Callable[[], Tensor]:
        """The replay function of a graph, captured if necessary."""
        self._captured(graph)
        assert graph.replay is not None
        return graph.replay

    def forget(self) -> None:
        """Drop the graphs now. `work` references its own graph, and the garbage collector might
        free this cycle too late.
        """
        for kind in self._kinds:
            kind.forget()

    def _captured(self, graph: Graph) -> bool:
        """Capture the graph. Returns False if it is captured already."""
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
    """Capture `work`, a step of `rows` rows. Returns the replay function, or `work` itself if
    memory runs out. In a tensor-parallel group, lack of memory raises an error instead: the other
    ranks would wait in all-reduces that this rank skipped.
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
    """True if the error, or one in its context chain, is an out-of-memory error. Ending a failed
    capture may raise a second error that hides the first.
    """
    if error is None:
        return False
    own = isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)
    return own or ran_out(error.__context__)


def capture_graph(
    work: Callable[[], Tensor], device: torch.device, pool: tuple[int, int] | None = None
) -> Callable[[], Tensor]:
    """Capture a graph on the device's current stream, after one run that compiles the kernels. Its
    tensors are in the memory pool `pool`, which all graphs of a stream share and overwrite, so a
    graph's results must be read before the next replay. None: a private pool.

    `torch.cuda.graph` is not used: it would empty torch's memory cache at each capture.
    """
    work()
    module = runtime(device)
    module.current_stream().synchronize()
    graph = getattr(module, str(kind_of(device).graph))()
    # With thread_local, other threads may allocate and synchronise during the capture.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        result = work()
    finally:
        graph.capture_end()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
