"""One rank as a Ray actor: the loop of `loop.py`, driven by calls.

Ray is not imported here: the `ray` executor makes an actor of the class.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from penstock.config import shared_memory_directory
from penstock.executor.ranks import (
    HeartbeatStream,
    LocalResources,
    RankTask,
    forget_graph_semaphores,
)
from penstock.executor.ranks.messages import LoadStatus, encode_answer, is_failed
from penstock.executor.worker.loop import MessageChannel, Rank, serve
from penstock.executor.worker.process import open_rings, open_stream

FETCH = 60.0
"""Seconds in which a computed step hands over its rows, which are there."""
LOADED = b""
"""In place of a report of the load: it has ended."""
CARRIED = b"X"
"""First byte of a residual stream in bytes, where an answer could come too."""


class Actor:
    """Methods are called in this order. `stay` runs beside the others until the rank ends, and
    `loading` beside `load`.
    """

    def __init__(self) -> None:
        self._stream: HeartbeatStream | None = None
        self._local: LocalResources | None = None
        self._rank: Rank
        self._last = True
        self._loaded = 0
        self._loading: SimpleQueue[bytes] = SimpleQueue()
        self._over = threading.Event()
        self._last_word = b""

    def greet(self) -> int:
        """Process id."""
        return os.getpid()

    def stay(self) -> bytes:
        """Returns when the rank ends, with the answer that explains it, if it was not sent."""
        self._over.wait()
        return self._last_word

    def call(self, address: str, key: bytes, rank: int, limit: int) -> None:
        """Open the stream to the executor on another host. This process ends with it."""
        self._stream = open_stream(address, key.hex(), str(rank), limit)

    def make(self, requests: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Communication resources of this host, for this rank and others."""
        self._local = LocalResources(shared_memory_directory(), str(os.getpid()))
        made = self._local.make(requests)
        self._local.files.seal()
        return made

    def close_files(self) -> None:
        """Call when all ranks have opened the resources."""
        if self._local is not None:
            self._local.close()

    def lose(self, error: Exception) -> None:
        """End the rank for an error beside its steps: the executor gets it from `stay`."""
        self._last_word = self._last_word or self._rank.failure(error)
        self._over.set()

    # Plans over rings or a stream -----------------------------------------------------------------

    def serve(self, job: dict[str, Any]) -> None:
        """Answer until the messages end."""
        if self._stream is not None:
            channel = MessageChannel(self._stream, self._stream, job["capacity"])
        else:
            channel = open_rings(job["plans"], job["answers"])
        with suppress(ConnectionError):  # The executor has ended.
            serve(Rank(RankTask(**job["task"]), channel.capacity), channel)
        self._over.set()

    # Plans as calls -------------------------------------------------------------------------------

    def load(self, job: dict[str, Any]) -> bytes:
        """The first answer."""
        try:
            self._rank, self._last = Rank(RankTask(**job["task"]), job["capacity"]), job["last"]
            answer = self._rank.load(
                lambda line: self._loading.put(encode_answer(LoadStatus.of(line)))
            )
        finally:
            self._loading.put(LOADED)
        self._loaded = time.time_ns()
        return answer

    def loading(self) -> bytes:
        """The next report of the load, beside it; LOADED when there are no more."""
        return self._loading.get()

    def step(self, message: bytes) -> bytes:
        return self._rank.answer(message)

    def stage(self, message: bytes, carried: Any = None) -> Any:
        """One node of a compiled graph: takes the previous stage's residual stream, as bytes or as
        a tensor, and gives its own, or the answer where it is the last. Failures are passed on.
        """
        if carried is not None:
            in_bytes = isinstance(carried, bytes)
            if in_bytes and carried[:1] != CARRIED:
                return carried
            self._rank.backend.put(carried[1:] if in_bytes else carried)
        answer = self.step(message)
        if not is_failed(answer):
            return answer if self._last else self._carry()
        if not self._rank.usable:
            # The graph's answer may never come: other ranks wait for this one.
            self._last_word = answer
            self._over.set()
        return answer

    def _carry(self) -> Any:
        rows = self._rank.backend.fetch(FETCH)
        return CARRIED + rows if isinstance(rows, bytes) else rows

    def forget_graph_semaphores(self) -> None:
        """Call when the graph has run once."""
        forget_graph_semaphores(self._loaded)
