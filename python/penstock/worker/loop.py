"""The loop of one rank, whatever brings its plans: receive a plan, compute it, answer."""

from __future__ import annotations

import time
import traceback
from typing import Protocol

from penstock.core import PenstockError, StepPlan, StepResult
from penstock.core.answers import Computed, Failed, encode_answer
from penstock.core.codec import decode_plan

NOTHING = b""
"""The answer of a rank whose results nobody reads."""


class Channel(Protocol):
    capacity: int
    """Bytes of an answer at most."""

    def receive(self) -> bytes | None:
        """The next plan; None when there will be no more."""

    def answer(self, message: bytes) -> None:
        """Called once when the rank is ready, then once for each plan."""


class Ticket(Protocol):
    def result(self) -> StepResult: ...


class Worker(Protocol):
    def submit(self, plan: StepPlan) -> Ticket:
        """ValueError, here or from the ticket, for a plan that cannot be computed; after any other error the
        worker is unusable, ConnectionError where that is because another rank was lost."""


def serve(channel: Channel, worker: Worker, rank: int, reads: bool) -> bool:
    """Answer plans until there are no more; False when the worker became unusable."""
    while (message := channel.receive()) is not None:
        step = 0
        try:
            plan = decode_plan(message)
            step = plan.step
            result = worker.submit(plan).result()
            answer = encode_answer(Computed(step, result)) if reads else NOTHING
        except Exception as error:  # noqa: BLE001 - whatever the rank raised, the engine hears of it
            failed = failure(rank, step, error)
            channel.answer(encode_answer(failed, channel.capacity))
            if failed.fatal:
                return False
        else:
            channel.answer(answer)
    return True


def failure(rank: int, step: int, error: Exception) -> Failed:
    """What the engine is told of an error."""
    known = isinstance(error, PenstockError)
    return Failed(
        rank=rank,
        step=step,
        message=str(error) if known else f"{type(error).__name__}: {error}",
        trace="" if known else "".join(traceback.format_exception(error)),
        fatal=step == 0 or not isinstance(error, ValueError),
        derived=isinstance(error, ConnectionError),
        at=time.monotonic(),
    )
