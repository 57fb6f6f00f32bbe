"""What the engine may ask of any executor."""

from __future__ import annotations

from typing import Protocol

from penstock.core import PenstockError, StepPlan, StepResult, WorkerFacts


class WorkersLostError(PenstockError):
    """A rank is gone or unusable, so all are: the executor has ended them and computes nothing any more."""


class Ticket(Protocol):
    """A step under way."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step, after all earlier ones that are of interest.

        Raises what it failed with, `WorkersLostError` when there will be no more, and `TimeoutError` after
        `timeout` seconds.
        """


class Executor(Protocol):
    depth: int
    """Plans in flight that keep every rank busy."""

    @property
    def facts(self) -> tuple[WorkerFacts, ...]:
        """Of each rank, in their order."""

    def submit(self, plan: StepPlan) -> Ticket:
        """Start a step and return at once. Plans are computed in the order of their submission."""

    def check(self) -> None:
        """WorkersLostError when ranks were lost while there was nothing to compute."""

    def close(self) -> None:
        """Let go of the model. No result is wanted any more."""
