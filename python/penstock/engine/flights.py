"""Plans under way: as many as keep every rank busy, landed in the order in which they left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import StepPlan
from penstock.executor import Executor, StepFuture, WorkersLostError
from penstock.scheduler import Scheduler


@dataclass(slots=True)
class Flight:
    plan: StepPlan
    began: float
    ticket: StepFuture | None
    """None when the executor did not take the plan."""
    error: Exception | None = None


class Flights:
    def __init__(
        self, scheduler: Scheduler, executor: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._flying: deque[Flight] = deque()

    def __bool__(self) -> bool:
        return bool(self._flying)

    def fill(self) -> None:
        """Start plans until the ranks are busy or there is nothing to compute."""
        while len(self._flying) < self._executor.depth and (plan := self._scheduler.schedule()):
            flight = Flight(plan, self._clock(), None)
            self._flying.append(flight)
            try:
                flight.ticket = self._executor.submit(plan)
            except WorkersLostError:
                raise
            except Exception as error:  # noqa: BLE001 - it is this step's error, whatever was raised
                flight.error = error

    def land(self) -> Flight:
        """Wait for the oldest plan and take in what it gave, or fail its requests with its `error`."""
        flight = self._flying[0]
        plan = flight.plan
        try:
            result = flight.ticket.result() if flight.ticket is not None else None
        except WorkersLostError:
            raise
        except Exception as error:  # noqa: BLE001 - it is this step's error, whatever was raised
            flight.error, result = error, None
        self._flying.popleft()
        if result is not None:
            self._scheduler.tiers.observed(plan, self._clock() - flight.began)
            self._scheduler.apply(plan, result)
        else:
            self._scheduler.fail(plan, f"the engine failed in step {plan.step}: {flight.error}")
        return flight

    def abandon(self, reason: str) -> None:
        """Nobody wants what is under way; its requests end."""
        while self._flying:
            self._scheduler.fail(self._flying.popleft().plan, reason)
