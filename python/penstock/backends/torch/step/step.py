"""A step of the torch backend: its plan, its draws, and its result."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from penstock.backends.torch.sampling.grammars import Grammars
from penstock.backends.torch.sampling.pooling import Pooled, vector_bytes
from penstock.backends.torch.sampling.sampling import DeviceResults, Draws, Scores, result_of
from penstock.backends.torch.step.device import Device, Done
from penstock.core import StepPlan, StepResult


class Pause:
    """Represents the step of a plan without sequences, during which the next graph is captured."""

    def __init__(self, done: Done) -> None:
        self._done = done

    def result(self, timeout: float | None = None) -> StepResult:
        self._done.result(timeout)
        return StepResult()


class Step:
    """A step of the backend, in flight or done."""

    def __init__(self, plan: StepPlan, before: Step | None, grammars: Grammars | None) -> None:
        self.plan = plan
        self._grammars = grammars
        self.draws = Draws()
        self.scores = Scores()
        self.pooled: list[Pooled] = []
        self.found = DeviceResults()
        self._before = before
        self._done: Done | None = None
        self._result: StepResult | None = None
        self._lock = threading.Lock()

    @property
    def only_tokens(self) -> bool:
        """Whether the step samples a token for each row and produces nothing else."""
        return self.plain_draws and len(self.draws.rows) == len(self.plan.tokens)

    @property
    def plain_draws(self) -> bool:
        """True if the step needs nothing but tokens, sampled from unmodified logits."""
        return self.draws.plain and not (self.scores.rows or self.pooled)

    def start(self, device: Device, work: Callable[[], None]) -> None:
        self._done = device.start(work)

    def result(self, timeout: float | None = None) -> StepResult:
        assert self._done is not None
        self._done.result(timeout)
        self.settle()
        assert self._result is not None
        return self._result

    def settle(self) -> None:
        """Wait for this step and all earlier ones, and process their tokens in the order of the
        steps.
        """
        with self._lock:
            if self._result is not None:
                return
            assert self._done is not None
            self.settle_before()
            self._before = None
            self._done.result()
            self._result = result_of(self.plan, self.draws, self.scores, self.found)
            self._result.vectors = vector_bytes(self.pooled, self.found.vectors)
            self._result.seconds = self._done.seconds
            if self._grammars is not None:
                self._result.masks = self._grammars.take_cost()

    def settle_before(self) -> None:
        """Wait for earlier steps and process their tokens. Their errors are ignored here, because
        the `result` of those steps raises them.
        """
        before = self._before
        if before is not None:
            with contextlib.suppress(Exception):
                before.settle()
