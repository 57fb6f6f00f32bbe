"""Where steps run. The engine asks an `Executor`; which kind it is was decided once, at start."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from penstock.core import StepPlan, StepResult, WorkerFacts


class Ticket(Protocol):
    """A step under way."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step; raises what it failed with, `TimeoutError` after `timeout` seconds."""


class Executor(Protocol):
    @property
    def facts(self) -> WorkerFacts: ...

    def submit(self, plan: StepPlan) -> Ticket:
        """Start a step and return at once. Plans are computed in the order of their submission."""

    def close(self) -> None:
        """Let go of the model. No plan is under way."""


class InlineExecutor:
    """One rank in this process: the decoder's own threads compute, so `submit` returns at once.

    `worker` names a module with a function `create` that takes the `arguments` and gives something that
    submits and closes. The module is imported here and by nobody else.
    """

    def __init__(self, worker: str, *arguments: object) -> None:
        self._worker = cast(Executor, import_module(worker).create(*arguments))
        self.facts = self._worker.facts
        self.submit = self._worker.submit

    def close(self) -> None:
        self._worker.close()
