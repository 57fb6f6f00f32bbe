"""One rank as a Ray actor: the same loop as a process of `mp`, told what to do by calls.

Ray is not imported here: the `ray` executor makes an actor of the class.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from penstock.config import shared_memory_directory
from penstock.core import RankTask
from penstock.core.answers import Failed, decode_answer, is_failed
from penstock.ranks import Line, LocalParts, forget_graph_semaphores
from penstock.worker.loop import MessageChannel, compute
from penstock.worker.process import LoadedWorker, live, load_rank, open_line, open_rings, prepare

FETCH = 60.0
"""Seconds in which a computed step hands over its rows: they are there."""
CARRIED = b"X"
"""What comes before a residual stream, where an answer could come too."""


class StageWorker(LoadedWorker, Protocol):
    def put(self, carried: bytes) -> None: ...

    def fetch(self, timeout: float) -> bytes: ...


class Actor:
    """Calls come in the order of the methods. `stay` is made beside the others and lasts as the
    rank does.
    """

    def __init__(self) -> None:
        self._line: Line | None = None
        self._parts: LocalParts | None = None
        self._task: RankTask
        self._capacity = 0
        self._last = True
        self._loaded = 0
        self._worker: StageWorker
        self._over = threading.Event()
        self._last_word = b""

    def greet(self) -> int:
        """The number of this process on its host."""
        return os.getpid()

    def stay(self) -> bytes:
        """Nothing until the rank ends; then the answer that says why, if nobody else hears of it."""
        self._over.wait()
        return self._last_word

    def call(self, address: str, key: bytes, rank: int, limit: int) -> None:
        """Open the line to the executor, which is on another host. Without it this process ends."""
        self._line = open_line(address, key.hex(), str(rank), limit)

    def make(self, wanted: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Shared memory and ports of this host, for this rank and others."""
        self._parts = LocalParts(shared_memory_directory(), str(os.getpid()))
        return self._parts.make(wanted)

    def close_files(self) -> None:
        """Everybody has opened what was made."""
        if self._parts is not None:
            self._parts.close()

    # Plans over rings or a line -------------------------------------------------------------------

    def serve(self, job: dict[str, Any]) -> None:
        """Compute until there are no more plans."""
        task = RankTask(**job["task"])
        if self._line is not None:
            channel = MessageChannel(self._line, self._line, job["capacity"])
        else:
            channel = open_rings(job["plans"], job["answers"])
        with suppress(ConnectionError):  # The executor is gone, and knows.
            live(task, channel, self.load_rank)
        self._over.set()

    # Plans as calls -------------------------------------------------------------------------------

    def load(self, job: dict[str, Any]) -> bytes:
        """What the executor is told first; plans follow unless it is a failure."""
        self._task, self._capacity, self._last = (
            RankTask(**job["task"]),
            job["capacity"],
            job["last"],
        )
        worker, answer = prepare(self._task, self.load_rank, self._capacity)
        self._loaded = time.time_ns()
        if worker is not None:
            self._worker = worker
        return answer

    def step(self, message: bytes) -> bytes:
        """The answer to a plan."""
        return compute(message, self._worker, self._task.rank, self._task.reads, self._capacity)[0]

    def stage(self, message: bytes, carried: bytes | None = None) -> bytes:
        """One node of a compiled graph: takes what the stage before left and gives what it leaves
        itself, or the answer where it is the last. Failures are handed on as they are.
        """
        if carried is not None:
            if carried[:1] != CARRIED:
                return carried
            self._worker.put(carried[1:])
        answer = self.step(message)
        if not is_failed(answer):
            return answer if self._last else CARRIED + self._worker.fetch(FETCH)
        failed = decode_answer(answer)
        if isinstance(failed, Failed) and failed.fatal:
            # The graph's answer may never come: other ranks wait for this one.
            self._last_word = answer
            self._over.set()
        return answer

    def forget_graph_semaphores(self) -> None:
        """To be called when the graph has run once."""
        forget_graph_semaphores(self._loaded)

    # Seams ----------------------------------------------------------------------------------------

    def load_rank(self, task: RankTask) -> StageWorker:
        return load_rank(task)
