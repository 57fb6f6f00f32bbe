"""One rank in this process."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from penstock.core import StepPlan, WorkerFacts
from penstock.executor.contract import Ticket


class Worker(Protocol):
    @property
    def facts(self) -> WorkerFacts: ...

    def submit(self, plan: StepPlan) -> Ticket: ...

    def close(self) -> None: ...


class InlineExecutor:
    """The decoder's own threads compute, so `submit` returns at once.

    `worker` names a module with a function `create` that takes the `arguments` and gives something that
    submits and closes. The module is imported here and by nobody else.
    """

    depth = 1

    def __init__(self, worker: str, *arguments: object) -> None:
        self._worker = cast(Worker, import_module(worker).create(*arguments))
        self.facts = (self._worker.facts,)
        self.submit = self._worker.submit

    def check(self) -> None:
        """The rank lives as long as this process."""

    def close(self) -> None:
        self._worker.close()
