"""The engine's loop: apply the result of a step, schedule and submit the next one, then publish
outputs. It sends one STEP frame for each step.

The executor computes the next plan while outputs go to the clients (`in_flight.py`).

Features do not belong here: policy is in the scheduler, arithmetic in the backend.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from typing import Protocol

from penstock.core import DeviceLostError, KvCommand, PenstockError, Request
from penstock.engine.admin import KvAdmin
from penstock.engine.frontend import Cancel, EngineFrame, FrontFrame, Shutdown, Step
from penstock.engine.in_flight import InFlight, SubmittedPlan
from penstock.engine.tiers import flush
from penstock.executor import Executor
from penstock.scheduler import Scheduler

HEARTBEAT = 1.0
"""Seconds between heartbeats of an idle engine."""
QUIET = 0.02
"""Minimum idle time of the engine in seconds before a pause (deferred work of the ranks). A pause
right after a response would delay a client that sends its next request at once.
"""
MOST_FAILURES = 3
"""Number of consecutive failed steps after which the engine counts as unusable."""
GC_STEPS = 4096

log = logging.getLogger("penstock.engine")


class UnusableError(PenstockError):
    """Steps keep failing, or would fail from now on. The engine's process must be replaced."""


class Channel(Protocol):
    """The engine's connection to the API server: `penstock.engine.frontend.Connection`."""

    def poll(self, timeout: float) -> list[FrontFrame]: ...

    def send(self, frame: EngineFrame) -> None: ...


class Engine:
    """The engine's loop. `run` returns after SHUTDOWN, and raises the channel's error if the API
    server has closed the connection, WorkersLostError if ranks are lost, and UnusableError if steps
    keep failing or the device is lost. After an error the engine's process must be replaced.
    """

    def __init__(
        self,
        channel: Channel,
        scheduler: Scheduler,
        executor: Executor,
        admin: KvAdmin,
        clock: Callable[[], float] = time.monotonic,
        pauses: int = 0,
    ) -> None:
        """`pauses`: number of pauses that the ranks can use for deferred work
        (`WorkerFacts.pauses`).
        """
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._admin = admin
        self._clock = clock
        self._in_flight = InFlight(scheduler, executor, clock, admin.rates)
        self._applied: SubmittedPlan | None = None
        self._step = 0
        self._failures = 0
        self._last_sent = clock()
        self._stopping = False
        self._collected = True
        self._pauses = pauses

    def run(self) -> None:
        while not self._stopping:
            self._poll_frontend(0.0)
            self._in_flight.submit_ready()
            self._publish_applied()
            if self._in_flight:
                self._applied = self._in_flight.wait_oldest()
            elif not self._stopping:
                self._idle()
        self._publish_applied()
        while self._in_flight:
            self._applied = self._in_flight.wait_oldest()
            self._publish_applied()
        flush(self._scheduler.tiers)

    def _poll_frontend(self, timeout: float) -> bool:
        """Handle the frames that have arrived; returns False if there were none. Cancels are
        handled first, because they free capacity. A request that is cancelled in the same batch
        therefore takes none.
        """
        frames = self._channel.poll(timeout)
        left = {key for frame in frames if isinstance(frame, Cancel) for key in frame.ids}
        for request_id in sorted(left):
            self._scheduler.cancel(request_id)
        for frame in frames:
            if isinstance(frame, Request):
                self._scheduler.add(frame, cancelled=frame.id in left)
            elif isinstance(frame, KvCommand):
                self._channel.send(self._admin.answer(frame))
            elif isinstance(frame, Shutdown):
                self._scheduler.cancel_all()
                self._stopping = True
                self._publish(0, 0.0)
        return bool(frames)

    def _publish_applied(self) -> None:
        """Send the outputs of the last step to the API server. Raises UnusableError after too many
        failed steps, or if the device is lost.
        """
        step, self._applied = self._applied, None
        if step is None:
            return
        plan = step.plan
        self._step = plan.step
        if step.error is None:
            self._failures = 0
        else:
            self._failures += step.ended_requests
            log.error("step %d failed", plan.step, exc_info=step.error)
        self._publish(len(plan.tokens), step.seconds * 1e3)
        if isinstance(step.error, DeviceLostError):
            raise UnusableError(str(step.error))
        if self._failures >= MOST_FAILURES:
            raise UnusableError(
                f"{self._failures} steps failed one after another, see the engine's log"
            )
        self._collected = False
        if plan.step % GC_STEPS == 0:
            gc.collect()

    def _idle(self) -> None:
        """Handle an idle iteration: publish the outputs of requests that ended without a step, or
        wait for a frame until the next heartbeat is due.
        """
        self._executor.check()
        outputs_due = self._scheduler.has_outputs()
        wait = self._last_sent + HEARTBEAT - self._clock()
        if outputs_due or wait <= 0:
            self._publish(0, 0.0)
            self._collect_when_idle()
        else:
            scheduler = self._scheduler
            wait = min(wait, scheduler.tiers.next_poll, scheduler.next_retry())
            paused = self._pauses > 0 and wait >= QUIET and not scheduler.has_requests()
            if not self._poll_frontend(QUIET if paused else wait) and paused:
                self._pause()

    def _pause(self) -> None:
        """Give the ranks time for one piece of deferred work."""
        self._pauses -= 1
        step = self._in_flight.pause()
        if step.error is None:
            return
        log.error("what was left for a pause failed", exc_info=step.error)
        self._pauses = 0
        if isinstance(step.error, DeviceLostError):
            raise UnusableError(str(step.error))

    def _collect_when_idle(self) -> None:
        """Run the garbage collector once after each busy period."""
        if not self._collected and not self._scheduler.has_requests():
            gc.collect()
            self._collected = True

    def _publish(self, batch_tokens: int, step_ms: float) -> None:
        scheduler = self._scheduler
        outputs = scheduler.take_outputs()
        self._channel.send(Step(self._step, scheduler.stats(), batch_tokens, step_ms, outputs))
        self._last_sent = self._clock()
        self._admin.kv.publish_events()
        if report := self._admin.due(self._last_sent):
            self._channel.send(report)
