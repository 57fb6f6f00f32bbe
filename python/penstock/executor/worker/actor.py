"""One rank as a Ray actor: the loop of `loop.py`, driven by calls.

Ray is not imported here: the `ray` executor turns the class into an actor.
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
"""Timeout in seconds to fetch the rows of a step that is already computed."""
LOADED = b""
"""Return value of `loading` once the load has ended, instead of a progress report."""
CARRIED = b"X"
"""First byte of hidden states that are sent between stages as bytes. It distinguishes them from an
answer.
"""


class Actor:
    """Actor of one rank. Its methods are called in the order in which they are defined. `stay` runs
    concurrently until the rank ends, and `loading` runs concurrently with `load`.
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
        """Process id of the actor."""
        return os.getpid()

    def stay(self) -> bytes:
        """Block until the rank ends. Returns the answer that explains the end if that answer was
        not sent otherwise; else nothing.
        """
        self._over.wait()
        return self._last_word

    def call(self, address: str, key: bytes, rank: int, limit: int) -> None:
        """Open the stream to the executor on another host. When the stream ends, this
        process ends.
        """
        self._stream = open_stream(address, key.hex(), str(rank), limit)

    def make(self, requests: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Create shared memory and ports on this host, for this rank and the ranks that
        share them.
        """
        self._local = LocalResources(shared_memory_directory(), str(os.getpid()))
        made = self._local.make(requests)
        self._local.files.seal()
        return made

    def close_files(self) -> None:
        """Close the resources that `make` created. Called when all ranks have opened them."""
        if self._local is not None:
            self._local.close()

    def lose(self, error: Exception) -> None:
        """End the rank after an error outside its steps. `stay` reports it to the executor."""
        self._last_word = self._last_word or self._rank.failure(error)
        self._over.set()

    # Plans over rings or a stream -----------------------------------------------------------------

    def serve(self, job: dict[str, Any]) -> None:
        """Load the model, then answer messages until the executor closes the channel."""
        if self._stream is not None:
            channel = MessageChannel(self._stream, self._stream, job["capacity"])
        else:
            channel = open_rings(job["plans"], job["answers"])
        with suppress(ConnectionError):  # The executor has ended.
            serve(Rank(RankTask(**job["task"]), channel.capacity), channel)
        self._over.set()

    # Plans as calls -------------------------------------------------------------------------------

    def load(self, job: dict[str, Any]) -> bytes:
        """Load the model; returns the first answer."""
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
        """Wait for the next progress report of the load. Returns LOADED after the last one."""
        return self._loading.get()

    def step(self, message: bytes) -> bytes:
        return self._rank.answer(message)

    def stage(self, message: bytes, carried: Any = None) -> Any:
        """Compute one node of a compiled graph. Takes the previous stage's hidden states as bytes
        or a tensor. Returns this stage's hidden states or, in the last stage, the answer. A failed
        step returns its answer in place of hidden states, and later stages pass that answer on.
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
            # Report the answer through `stay` too. The graph may never deliver it, because other
            # ranks wait for this rank.
            self._last_word = answer
            self._over.set()
        return answer

    def _carry(self) -> Any:
        rows = self._rank.backend.fetch(FETCH)
        return CARRIED + rows if isinstance(rows, bytes) else rows

    def forget_graph_semaphores(self) -> None:
        """Unlink the semaphores that Ray leaves behind. Called after the graph's first
        execution.
        """
        forget_graph_semaphores(self._loaded)
