"""The loop of one rank, whatever brings its plans: receive a plan, compute it, answer."""

from __future__ import annotations

from typing import Protocol

from penstock.core import StepPlan, StepResult
from penstock.core.answers import Computed, MoverClosed, encode_answer
from penstock.core.codec import decode_plan
from penstock.core.transfer_codec import END, OPEN
from penstock.worker.failing import failure
from penstock.worker.moving import Channel, Mover, open_tiers

WAIT = 60.0
"""Seconds of a wait for a plan; after it the next one begins."""
NOTHING = b""
"""The answer of a rank whose results nobody reads."""


class Source(Protocol):
    def receive(self, timeout: float, /) -> bytes | None:
        """The next message; None when none came in time, ConnectionError when none will come."""


class Sink(Protocol):
    def send(self, message: bytes, /) -> None: ...


class MessageChannel:
    """Over rings of shared memory (one that all ranks read, one of this rank's own) or a line."""

    def __init__(self, plans: Source, answers: Sink, capacity: int) -> None:
        self._plans = plans
        self._answers = answers
        self.capacity = capacity

    def receive(self) -> bytes | None:
        try:
            while (message := self._plans.receive(WAIT)) is None:
                pass
        except ConnectionError:
            return None
        return message

    def answer(self, message: bytes) -> None:
        if message:
            self._answers.send(message)


class Ticket(Protocol):
    def result(self) -> StepResult: ...


class Worker(Mover, Protocol):
    def submit(self, plan: StepPlan) -> Ticket:
        """ValueError, here or from the ticket, for a plan that cannot be computed; after any other
        error the worker is unusable, ConnectionError where that is because another rank was lost.
        """


def serve(channel: Channel, worker: Worker, rank: int, reads: bool) -> bool:
    """Answer plans until there are no more; False when the worker became unusable."""
    while (message := channel.receive()) is not None:
        usable = True
        if message.startswith(OPEN):
            opened = open_tiers(message, channel, worker, rank)
            channel, usable = opened or channel, opened is not None
        elif message.startswith(END):
            worker.close_tiers()
            channel.answer(encode_answer(MoverClosed()))
        else:
            answer, usable = compute(message, worker, rank, reads, channel.capacity)
            channel.answer(answer)
        if not usable:
            return False
    return True


def compute(
    message: bytes, worker: Worker, rank: int, reads: bool, capacity: int
) -> tuple[bytes, bool]:
    """The answer to one plan, and whether the worker is still usable."""
    step = 0
    try:
        plan = decode_plan(message)
        step = plan.step
        result = worker.submit(plan).result()
        return encode_answer(Computed(step, result)) if reads else NOTHING, True
    except Exception as error:  # noqa: BLE001 - whatever the rank raised, the engine hears of it
        failed = failure(rank, step, error)
        return encode_answer(failed, capacity), not failed.fatal
