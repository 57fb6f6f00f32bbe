"""Transport of plans and answers between the engine and ranks in other processes: rings in shared
memory on the engine's node, streams to other nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from penstock.executor.processes import RankExit
from penstock.executor.ranks import HeartbeatStream, RankLayout, SharedFiles
from penstock.executor.ranks.messages import Failed, decode_answer, encode_answer, is_failed

if TYPE_CHECKING:
    from penstock._native import RingWriter

PATIENCE = 600.0
"""Timeout in seconds of a send that waits for ranks to read. In normal operation no send waits,
because a ring has more cells than messages can be in flight.
"""
LEAST_ANSWER = 1 << 16
"""Minimum capacity of an answer in bytes: enough for a rank's facts or a traceback."""


class PlanSender(Protocol):
    def send(self, message: bytes, /) -> None:
        """Send a message to all ranks. Raises ConnectionError after an abort."""


class AnswerReceiver(Protocol):
    """The answers of one rank, in order."""

    def receive(self, timeout: float, /) -> bytes | None:
        """The next answer; None if none arrives within `timeout` seconds. Raises ConnectionError if
        no further answer will come.
        """

    def ready(self) -> bool:
        """Whether `receive` would return an answer at once."""


class AbortHandle(Protocol):
    def end(self, reason: str, /) -> None:
        """Abort every wait on one shared file, stream or channel of calls, with this reason."""


@dataclass(slots=True)
class Transport:
    plans: PlanSender | None = None
    answers: Sequence[AnswerReceiver] = ()
    """One receiver for each rank."""
    abort_handles: list[AbortHandle] = field(default_factory=list)
    exit: RankExit | None = None
    """The first exit of a rank; None while all ranks run."""
    _exited: threading.Event = field(default_factory=threading.Event)

    def on_exit(self, exited: RankExit) -> None:
        """Record the exit and abort all waits. Called by the thread that watches the ranks."""
        self.exit = exited
        self._exited.set()
        self.abort(exited.reason)

    def await_exit(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until `exit` is set."""
        self._exited.wait(timeout)

    def abort(self, reason: str) -> None:
        for handle in self.abort_handles:
            handle.end(reason)


def answer_bytes(layout: RankLayout, rank: int) -> int:
    return max(layout.result_bytes if rank == layout.reader else 0, LEAST_ANSWER)


def open_rings(
    layout: RankLayout,
    files: SharedFiles,
    transport: Transport,
    streams: Mapping[int, HeartbeatStream] | None = None,
) -> list[dict[str, Any]]:
    """Connect `transport` to all ranks: through `streams` to ranks on other nodes, else through
    rings in `files`, which the caller keeps open until the ranks have opened them.

    Returns, for each rank, the fields of its job that describe its end of the transport.
    """
    from penstock._native import RingReader, RingWriter

    streams = streams or {}
    here = [rank for rank in range(layout.size) if rank not in streams]
    writer, plans = None, {}
    if here:
        plans = files.ring(len(here), layout.plan_cells, layout.plan_bytes)
        plans["readers"] = len(here)
        writer = RingWriter(**plans, patience=PATIENCE)
    answers: list[AnswerReceiver] = []
    jobs: list[dict[str, Any]] = []
    for rank in range(layout.size):
        room = answer_bytes(layout, rank)
        if rank in streams:
            received = StreamAnswers(streams[rank])
            answers.append(received)
            transport.abort_handles.append(received)
            jobs.append({"capacity": room})
        else:
            ring = files.ring(1, layout.answer_cells, room)
            answers.append(RingReader(**ring, reader=0, readers=1))
            jobs.append({"plans": {**plans, "reader": here.index(rank)}, "answers": ring})
    files.seal()
    transport.abort_handles += files.abort_handles()
    transport.plans = SplitPlans(writer, list(streams.values()))
    transport.answers = answers
    return jobs


class SplitPlans:
    """Sends plans through one ring to local ranks, and through streams to the ranks on
    other nodes.
    """

    def __init__(self, ring: RingWriter | None, streams: Sequence[HeartbeatStream]) -> None:
        self._ring = ring
        self._streams = streams

    def send(self, message: bytes) -> None:
        for stream in self._streams:
            stream.send(message)
        if self._ring is not None:
            self._ring.send(message)


class StreamAnswers:
    def __init__(self, stream: HeartbeatStream) -> None:
        self._stream = stream
        self._reason: str | None = None

    def ready(self) -> bool:
        return self._stream.ready()

    def end(self, reason: str) -> None:
        """Set the reason that `receive` raises once all answers are read. The stream stays open,
        because the last answer may explain the loss.
        """
        self._reason = reason

    def receive(self, timeout: float) -> bytes | None:
        if self._reason is not None and not self.ready():
            raise ConnectionError(self._reason)
        message = self._stream.receive(timeout)
        failed = decode_answer(message) if message and is_failed(message) else None
        if isinstance(failed, Failed):
            # Monotonic clocks of two hosts are not comparable, so the failure gets the time at
            # which it arrived at this host.
            return encode_answer(replace(failed, at=self._stream.arrived))
        return message
