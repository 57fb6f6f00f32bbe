"""Plans as calls on Ray: one call to each actor, or one execution of a compiled graph."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.executor.ranks.messages import Failed, decode_answer, is_failed
from penstock.executor.ray.actors import Actors
from penstock.executor.ray.cluster import Cluster


class CallAnswers:
    """Results of one actor's calls, in the order of the calls. At most `keep` calls may be in
    flight.
    """

    def __init__(self, ray: Any, name: str, keep: int) -> None:
        self._ray = ray
        self._name = name
        self._keep = keep
        self._refs: deque[Any] = deque()
        self._report: Any = None
        """Pending call for the next progress report. While it is pending, the load itself is the
        oldest call.
        """
        self._next_report: Callable[[], Any] = lambda: None
        self._unread: deque[bytes] = deque()
        self._reason: str | None = None
        self._lost = False

    def add(self, ref: Any) -> None:
        """Append a call. If more than `keep` calls are unread, the oldest result is taken. A rank
        whose answers the executor does not read returns nothing.
        """
        self._refs.append(ref)
        if len(self._refs) > self._keep:
            self._take(0.0)

    def add_load(self, ref: Any, next_report: Callable[[], Any]) -> None:
        """Append a load. `next_report` calls the actor for a progress report; an empty report is
        the last one.
        """
        self._next_report, self._report = next_report, next_report()
        self.add(ref)

    def receive(self, timeout: float) -> bytes | None:
        deadline = time.monotonic() + timeout
        while not self._unread:
            if self._reason is not None:
                raise ConnectionError(self._reason)
            left = max(deadline - time.monotonic(), 0.0)
            if not self._refs:
                time.sleep(left)
            if not self._refs or not self._take(left):
                return None
        return self._unread.popleft()

    def ready(self) -> bool:
        while not self._unread and self._refs and self._take(0.0):
            pass
        return bool(self._unread)

    def end(self, reason: str) -> None:
        self._reason = reason

    def _take(self, timeout: float) -> bool:
        """Take the result of the oldest call, or a progress report; returns whether one arrived
        within `timeout` seconds.
        """
        if self._lost:
            return False
        try:
            oldest = self._refs[0] if self._report is None else self._report
            message = self._ray.get(oldest, timeout=timeout)
        except self._ray.exceptions.GetTimeoutError:
            return False
        except self._ray.exceptions.RayError as error:
            self._lost, self._reason = True, f"{self._name} was lost: {error}"
            return False
        if self._report is None:
            self._refs.popleft()
        else:
            self._report = self._next_report() if message else None
        if message:
            self._unread.append(message)
        return True


class Calls:
    """Channel that sends each message as a call of the actors' method `step`."""

    def __init__(self, cluster: Cluster, actors: Actors, depth: int) -> None:
        self._handles = actors.handles
        self.answers = [
            CallAnswers(cluster.ray, actors.name(rank), depth + 1)
            for rank in range(len(actors.handles))
        ]

    def load(self, jobs: Sequence[dict[str, Any]]) -> None:
        for handle, answers, job in zip(self._handles, self.answers, jobs, strict=True):
            report = handle.loading.options(concurrency_group="control").remote
            answers.add_load(handle.load.remote(job), report)

    def send(self, message: bytes) -> None:
        for handle, answers in zip(self._handles, self.answers, strict=True):
            answers.add(handle.step.remote(message))


class GraphAnswers:
    """Answers of one rank, taken from the results of graph executions."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.messages: deque[bytes] = deque()

    def receive(self, timeout: float) -> bytes | None:
        """The rank's next answer. Reads the next execution without a timeout, because Ray cannot
        resume an abandoned read. The read ends if an actor ends. `timeout` applies only if no
        execution is in flight.
        """
        if not self.messages:
            self._graph.read(timeout)
        return self.messages.popleft() if self.messages else None

    def ready(self) -> bool:
        return bool(self.messages)


class Graph:
    """Channel that sends plans as executions of a compiled graph: input, the ranks of each stage in
    turn, output.

    `edges` has a communicator for each rank that sends its rows (hidden states) to the next stage
    as a tensor; empty if rows are sent as bytes.
    """

    def __init__(
        self,
        cluster: Cluster,
        actors: Actors,
        tp: int,
        depth: int,
        buffer_bytes: int,
        overlap: bool = False,
        edges: Sequence[Any] = (),
    ) -> None:
        self._ray = cluster.ray
        self._actors = actors
        self._tp = tp
        self._edges = edges
        self._refs: deque[list[Any]] = deque()
        self._reason: str | None = None
        self.answers = [GraphAnswers(self) for _ in actors.handles]
        self._graph = cluster.graph(self._nodes, depth + 1, buffer_bytes, overlap)

    def send(self, message: bytes) -> None:
        if self._reason is not None:
            raise ConnectionError(self._reason)
        try:
            self._refs.append(self._graph.execute(message))
        except self._ray.exceptions.RayError as error:
            self._actors.await_report()
            raise ConnectionError(str(error)) from error

    def read(self, timeout: float) -> None:
        """Wait for the oldest execution, and give each rank's answer to its `GraphAnswers`."""
        if self._reason is not None:
            raise ConnectionError(self._reason)
        if not self._refs:
            time.sleep(timeout)
            return
        try:
            results = [ref.get(timeout=-1) for ref in self._refs[0]]
        except self._ray.exceptions.RayError as error:
            self._actors.await_report()
            raise ConnectionError(str(error)) from error
        self._refs.popleft()
        for column, answer in enumerate(results):
            self._hand_out(column, answer)

    def end(self, reason: str) -> None:
        """Kill the actors, which also ends a read on another thread."""
        self._reason = self._reason or reason
        self._actors.kill()

    def close(self) -> None:
        self._graph.teardown()

    def _nodes(self, given: Any) -> list[Any]:
        handles, tp = self._actors.handles, self._tp
        nodes = [handle.stage.bind(given) for handle in handles[:tp]]
        for start in range(tp, len(handles), tp):
            row = handles[start : start + tp]
            # The tensor's shape is not fixed: a step has as many rows as its plan, and a failed
            # step has none.
            for node, edge in zip(nodes, self._edges[start - tp : start], strict=bool(self._edges)):
                node.with_tensor_transport(transport=edge)
            nodes = [
                handle.stage.bind(given, node) for handle, node in zip(row, nodes, strict=True)
            ]
        return nodes

    def _hand_out(self, column: int, answer: bytes) -> None:
        """Give the answer of the last stage's rank `column` to its `GraphAnswers`. A failure counts
        for the failed rank and for the ranks of later stages, which had no input.
        """
        failed = decode_answer(answer) if is_failed(answer) else None
        if isinstance(failed, Failed):
            for rank in range(failed.rank, len(self.answers), self._tp):
                self.answers[rank].messages.append(answer)
        elif answer:
            self.answers[len(self.answers) - self._tp + column].messages.append(answer)
