"""Drives the engine's steps on the caller's thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from penstock.core import StepOutput
from penstock.engine import InFlight, Started


def drive(
    started: Started,
    in_flight: InFlight,
    submit: Callable[[], None],
    take: Callable[[StepOutput], None],
) -> None:
    """Call `submit`, which adds requests to the scheduler. Then compute steps until all requests
    have ended. `take` is called with each row of outputs. An error in either function, or in a
    step, ends all requests.
    """
    scheduler = started.scheduler
    try:
        submit()
        while scheduler.has_requests() or scheduler.has_outputs() or in_flight:
            _step(started, in_flight)
            for row in scheduler.take_outputs().rows():
                take(row)
    finally:
        in_flight.abandon("the batch was given up")
        scheduler.cancel_all()
        scheduler.take_outputs()


def _step(started: Started, in_flight: InFlight) -> None:
    in_flight.submit_ready()
    if in_flight:
        if error := in_flight.wait_oldest().error:
            raise error
    else:
        scheduler = started.scheduler
        wait = min(scheduler.tiers.next_poll, scheduler.next_retry())
        if wait < math.inf:
            time.sleep(wait)
