"""Plans in flight. There are always enough of them to keep the executor busy. Results are applied
in the order of submission.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import StepPlan
from penstock.executor import Executor, StepFuture, WorkersLostError
from penstock.kv.tiers import Rates
from penstock.scheduler import Scheduler


@dataclass(slots=True)
class SubmittedPlan:
    plan: StepPlan
    began: float
    future: StepFuture | None
    """The step's future; None if the executor rejected the plan."""
    seconds: float = 0.0
    """Compute time of the step in seconds."""
    error: Exception | None = None
    ended_requests: bool = False
    """Whether the error ended requests; False if it is only a consequence of an earlier plan's
    error.
    """


class InFlight:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        rates: Rates | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._rates = rates or Rates()
        self._plans: deque[SubmittedPlan] = deque()

    def __bool__(self) -> bool:
        return bool(self._plans)

    def submit_ready(self) -> None:
        """Submit plans until the executor is busy or nothing is left to compute."""
        while len(self._plans) < self._executor.depth and (plan := self._scheduler.schedule()):
            step = SubmittedPlan(plan, self._clock(), None)
            self._plans.append(step)
            try:
                step.future = self._executor.submit(plan)
            except WorkersLostError:
                raise
            except Exception as error:  # noqa: BLE001 - every error belongs to this step
                step.error = error

    def pause(self) -> SubmittedPlan:
        """Compute a plan without sequences and wait for it. The ranks use the pause for deferred
        work. No other plan may be in flight.
        """
        step = SubmittedPlan(self._scheduler.pause(), self._clock(), None)
        try:
            step.future = self._executor.submit(step.plan)
            step.future.result()
        except WorkersLostError:
            raise
        except Exception as error:  # noqa: BLE001 - the ranks may still be usable
            step.error = error
        return step

    def wait_oldest(self) -> SubmittedPlan:
        """Wait for the oldest plan. Applies its result to the scheduler; if the step failed, ends
        its requests and sets `error`.
        """
        step = self._plans[0]
        plan = step.plan
        try:
            result = step.future.result() if step.future is not None else None
        except WorkersLostError:
            raise
        except Exception as error:  # noqa: BLE001 - every error belongs to this step
            step.error, result = error, None
        self._plans.popleft()
        step.seconds = self._clock() - step.began
        if result is not None:
            # With one pipeline stage, plans are submitted ahead but computed one at a time. The
            # time since submission therefore includes waiting, so the rank's own measurement is
            # used.
            if self._scheduler.limits.stages == 1 and result.seconds > 0:
                step.seconds = result.seconds
            self._rates.observed(plan, step.seconds)
            self._scheduler.apply(plan, result)
        else:
            message = f"the engine failed in step {plan.step}: {step.error}"
            step.ended_requests = self._scheduler.fail(plan, message)
        return step

    def abandon(self, reason: str) -> None:
        """Drop all plans in flight and end their requests."""
        while self._plans:
            self._scheduler.fail(self._plans.pop().plan, reason)
