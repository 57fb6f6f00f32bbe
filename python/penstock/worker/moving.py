"""Transfers in a rank that is not in the engine's process: begun while a step is computed, answered
as they end.

Only where there are tiers: without them no plan takes the way over another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from penstock.core.answers import MoverReport, encode_answer, encode_movements
from penstock.core.codec import is_plan
from penstock.core.transfer import Moved, OpenTiers, Transfer
from penstock.core.transfer_codec import decode_open, decode_transfer, is_transfer
from penstock.worker.failing import failure

REPORT = 1.0
"""Seconds between looks at what the mover says about its tiers."""


class Channel(Protocol):
    capacity: int
    """Bytes of an answer at most."""

    def receive(self) -> bytes | None:
        """The next plan, or what else is to be done; None when there will be no more."""

    def answer(self, message: bytes) -> None:
        """Called once when the rank is ready, then once for each plan; with tiers between them too."""


class Mover(Protocol):
    """The part of a worker that moves; whatever it raises makes the rank unusable."""

    def open_tiers(self, tiers: OpenTiers) -> None:
        """PenstockError says what cannot be opened."""

    def transfer(self, transfer: Transfer) -> None:
        """Never waits."""

    def moved(self, timeout: float) -> list[Moved]:
        """Those that are over; waits for the first at most `timeout` seconds."""

    def mover_report(self) -> str:
        """JSON."""

    def close_tiers(self) -> None:
        """Let stores under way end, or their time."""


def open_tiers(message: bytes, channel: Channel, mover: Mover, rank: int) -> MovingChannel | None:
    """What to receive from and to answer to from now on; None when the rank cannot go on, and has
    said so.
    """
    try:
        mover.open_tiers(decode_open(message))
        moving = MovingChannel(channel, mover, rank)
        channel.answer(encode_answer(MoverReport(mover.mover_report())))
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it was, the engine hears of it
        channel.answer(encode_answer(failure(rank, 0, error), channel.capacity))
        return None
    moving.start()
    return moving


class MovingChannel:
    """`channel` without its transfers. They are begun on a thread of their own, which receives all
    there is, and answered on another one, between the answers of plans.

    A transfer waits for the plans whose results the engine knew when it asked, because another rank
    gave them: this one may still hold their blocks. It does not wait for those under way since.
    """

    def __init__(self, channel: Channel, mover: Mover, rank: int) -> None:
        self.capacity = channel.capacity
        self._channel = channel
        self._mover = mover
        self._rank = rank
        self._rest: SimpleQueue[bytes | None] = SimpleQueue()
        self._computing = False
        self._computed = 0
        self._progress = threading.Condition()
        self._answering = threading.Lock()
        self._told = ""

    def start(self) -> None:
        for loop in (self._receive, self._tell):
            threading.Thread(target=self._run, args=(loop,), name="moving", daemon=True).start()

    def receive(self) -> bytes | None:
        """The next message that is no transfer."""
        message = self._rest.get()
        self._computing = message is not None and is_plan(message)
        return message

    def answer(self, message: bytes) -> None:
        """To what was received last, which is done with."""
        if self._computing:
            self._computing = False
            with self._progress:
                self._computed += 1
                self._progress.notify()
        self._send(message)

    def _send(self, message: bytes) -> None:
        with self._answering:
            self._channel.answer(message)

    def _run(self, loop: Callable[[], None]) -> None:
        with suppress(ConnectionError):  # The executor is gone.
            try:
                loop()
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, the engine hears of it
                self._send(encode_answer(failure(self._rank, 0, error), self.capacity))
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
        self._mover.transfer(transfer)

    def _tell(self) -> None:
        due = time.monotonic() + REPORT
        while True:
            for message in encode_movements(self._mover.moved(REPORT), self.capacity):
                self._send(message)
            if time.monotonic() >= due:
                self._report()
                due = time.monotonic() + REPORT

    def _report(self) -> None:
        report = self._mover.mover_report()
        if report != self._told:
            self._send(encode_answer(MoverReport(report)))
            self._told = report
