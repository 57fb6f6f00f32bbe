"""The loop: take requests in, schedule, submit, apply, publish. One STEP frame for each step.

With ranks in stages several plans are in flight (`flights.py`): the oldest is awaited, the others
compute.

It must not become the place where features live: policy belongs to the scheduler, arithmetic to the
worker.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from typing import Protocol

from penstock.core import KvCommand, PenstockError, Request
from penstock.engine.admin import KvAdmin
from penstock.engine.flights import Flights
from penstock.engine.frontend import Cancel, EngineFrame, FrontFrame, Shutdown, Step
from penstock.engine.tiers import flush
from penstock.executor import Executor
from penstock.scheduler import Scheduler

HEARTBEAT = 1.0
"""Seconds between frames of an idle engine."""
MOST_FAILURES = 3
"""Steps that fail one after another before the decoder counts as unusable."""
GC_STEPS = 4096

log = logging.getLogger("penstock.engine")


class UnusableError(PenstockError):
    """The decoder fails whatever it is given; the process has to be replaced."""


class Channel(Protocol):
    """The engine's side of the wire, as `penstock.engine.frontend.Connection` offers it."""

    def poll(self, timeout: float) -> list[FrontFrame]: ...

    def send(self, frame: EngineFrame) -> None: ...


class Engine:
    """`run` returns after SHUTDOWN. The channel's error comes through when the front door is gone,
    `WorkersLostError` when ranks are, UnusableError when steps keep failing: then the process is
    replaced.
    """

    def __init__(
        self,
        channel: Channel,
        scheduler: Scheduler,
        executor: Executor,
        admin: KvAdmin,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._admin = admin
        self._clock = clock
        self._flights = Flights(scheduler, executor, clock)
        self._step = 0
        self._failures = 0
        self._last_sent = clock()
        self._stopping = False
        self._tidy = False

    def run(self) -> None:
        while not self._stopping:
            self._take_in(0.0)
            self._flights.fill()
            if self._flights:
                self._land()
            else:
                self._rest()
        while self._flights:
            self._land()
        flush(self._scheduler.tiers)

    def _take_in(self, timeout: float) -> None:
        for frame in self._channel.poll(timeout):
            if isinstance(frame, Request):
                self._scheduler.add(frame)
            elif isinstance(frame, Cancel):
                for request_id in frame.ids:
                    self._scheduler.cancel(request_id)
            elif isinstance(frame, KvCommand):
                self._channel.send(self._admin.answer(frame))
            elif isinstance(frame, Shutdown):
                self._scheduler.cancel_all()
                self._stopping = True
                self._publish(0, 0.0)

    def _land(self) -> None:
        flight = self._flights.land()
        plan = flight.plan
        self._step = plan.step
        if flight.error is None:
            self._failures = 0
        else:
            self._failures += 1
            log.error("step %d failed", plan.step, exc_info=flight.error)
        seconds = self._clock() - flight.began
        self._publish(len(plan.tokens), seconds * 1e3)
        if self._failures >= MOST_FAILURES:
            raise UnusableError(
                f"{self._failures} steps failed one after another, see the engine's log"
            )
        self._tidy = True
        if plan.step % GC_STEPS == 0:
            gc.collect()

    def _rest(self) -> None:
        """Nothing to compute: answer what ended without a step, else wait for a frame or a
        heartbeat.
        """
        self._executor.check()
        outputs_due = self._scheduler.has_outputs()
        wait = self._last_sent + HEARTBEAT - self._clock()
        if outputs_due or wait <= 0:
            self._publish(0, 0.0)
            self._collect()
        else:
            self._take_in(min(wait, self._scheduler.tiers.look))

    def _collect(self) -> None:
        """The collector runs while nobody waits, and once after each stretch of work."""
        if self._tidy and not self._scheduler.has_requests():
            gc.collect()
            self._tidy = False

    def _publish(self, batch_tokens: int, step_ms: float) -> None:
        scheduler = self._scheduler
        outputs = scheduler.take_outputs()
        self._channel.send(Step(self._step, scheduler.stats(), batch_tokens, step_ms, outputs))
        self._last_sent = self._clock()
        if report := self._admin.due(self._last_sent):
            self._channel.send(report)
