"""KV transfers of a rank outside the engine's process. They start while steps compute, and are
answered when they end. Used only with tiers: without them, plans need not pass between threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from penstock.backends import KvMover
from penstock.core.codec import is_plan
from penstock.core.transfer import Transfer
from penstock.executor.ranks.messages import MoverReport, encode_answer, encode_results
from penstock.executor.ranks.transfers import decode_transfer, is_transfer

REPORT = 1.0
"""Seconds between reports on the state of the tiers."""


class Channel(Protocol):
    capacity: int
    """Maximum size of an answer in bytes."""

    def receive(self) -> bytes | None:
        """Wait for the next message; None if the channel is closed."""

    def ready(self) -> bool:
        """Whether `receive` would return a message at once."""

    def answer(self, message: bytes) -> None:
        """Answer the oldest unanswered message."""


class TransferChannel:
    """A channel that handles the transfers among the messages of `channel` and passes on all
    others. One thread receives all messages and starts the transfers. Another thread sends the
    transfers' answers, between the answers to plans.

    A transfer waits for the plans whose results the engine had read when it sent the transfer.
    Those results came from another rank, and this rank may still use the blocks. The transfer does
    not wait for later plans.
    """

    def __init__(
        self,
        channel: Channel,
        mover: KvMover,
        flush_s: float,
        failure: Callable[[Exception], bytes],
    ) -> None:
        self.capacity = channel.capacity
        self._channel = channel
        self._mover = mover
        self._flush_s = flush_s
        self._failure = failure
        self._rest: SimpleQueue[bytes | None] = SimpleQueue()
        self._plans: deque[bool] = deque()
        """For each unanswered message, in order: whether it is a plan."""
        self._computed = 0
        self._progress = threading.Condition()
        self._answering = threading.Lock()
        self._reported = ""

    def start(self) -> None:
        for loop in (self._receive, self._answer_transfers):
            threading.Thread(target=self._run, args=(loop,), name="transfers", daemon=True).start()

    def receive(self) -> bytes | None:
        """The next message that is not a transfer."""
        message = self._rest.get()
        if message is not None:
            self._plans.append(is_plan(message))
        return message

    def ready(self) -> bool:
        return not self._rest.empty()

    def answer(self, message: bytes) -> None:
        if self._plans.popleft():
            with self._progress:
                self._computed += 1
                self._progress.notify()
        self._send(message)

    def close(self) -> None:
        """Write pending stores to the tiers, for at most `flush_s` seconds."""
        self._mover.close(self._flush_s)

    def _send(self, message: bytes) -> None:
        with self._answering:
            self._channel.answer(message)

    def _run(self, loop: Callable[[], None]) -> None:
        with suppress(ConnectionError):  # The executor has ended.
            try:
                loop()
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - the engine gets every error
                self._send(self._failure(error))
        self._rest.put(None)

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            if is_transfer(message):
                self._begin(*decode_transfer(message))
            else:
                self._rest.put(message)

    def _begin(self, transfer: Transfer, after: int) -> None:
        with self._progress:
            self._progress.wait_for(lambda: self._computed >= after)
        self._mover.submit(transfer)

    def _answer_transfers(self) -> None:
        due = time.monotonic() + REPORT
        while True:
            for message in encode_results(self._mover.take(REPORT), self.capacity):
                self._send(message)
            if time.monotonic() >= due:
                self._report()
                due = time.monotonic() + REPORT

    def _report(self) -> None:
        report = self._mover.report()
        if report != self._reported:
            self._send(encode_answer(MoverReport(report)))
            self._reported = report
