"""Where steps run. The engine asks an `Executor`; which kind it is was decided once, by `create`."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from penstock.core import StepPlan, StepResult


class Ticket(Protocol):
    """A step under way."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step; raises what it failed with, `TimeoutError` after `timeout` seconds."""


class Executor(Protocol):
    def submit(self, plan: StepPlan) -> Ticket:
        """Start a step and return at once. Plans are computed in the order of their submission."""

    def close(self) -> None:
        """Let go of the model. No plan is under way."""


class WorkerFactory(Protocol):
    """What a worker module offers under the name `create`."""

    def __call__(self, options: dict[str, object]) -> Executor: ...


class InlineExecutor:
    """One rank in this process: the decoder's own threads compute, so `submit` returns at once.

    `worker` names a module with a `create(options)`; it is imported here and by nobody else.
    """

    def __init__(self, worker: str, options: dict[str, object]) -> None:
        create: WorkerFactory = import_module(worker).create
        self._worker = create(options)

    def submit(self, plan: StepPlan) -> Ticket:
        return self._worker.submit(plan)

    def close(self) -> None:
        self._worker.close()
