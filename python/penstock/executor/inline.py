"""One rank in this process."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from penstock.core import StepPlan, WorkerFacts
from penstock.core.transfer import Moved, OpenTiers, Transfer
from penstock.executor.contract import Ticket


class Worker(Protocol):
    @property
    def facts(self) -> WorkerFacts: ...

    def submit(self, plan: StepPlan) -> Ticket: ...

    def open_tiers(self, tiers: OpenTiers) -> None: ...

    def transfer(self, transfer: Transfer) -> None: ...

    def moved(self, timeout: float) -> list[Moved]: ...

    def mover_report(self) -> str: ...

    def close(self) -> None: ...


class InlineExecutor:
    """The decoder's own threads compute, so `submit` returns at once.

    `worker` names a module with a function `create` that takes the `arguments` and gives a
    `Worker`. It is imported here and by nobody else.
    """

    depth = 1

    def __init__(self, worker: str, *arguments: object) -> None:
        self._worker = cast(Worker, import_module(worker).create(*arguments))
        self.facts = (self._worker.facts,)
        self.submit = self._worker.submit
        self._tiers = False

    def open_tiers(self, tiers: OpenTiers) -> None:
        self._worker.open_tiers(tiers)
        self._tiers = True

    def transfer(self, transfer: Transfer) -> None:
        self._worker.transfer(transfer)

    def moved(self) -> list[Moved]:
        return self._worker.moved(0.0)

    def mover_reports(self) -> tuple[str, ...]:
        return (self._worker.mover_report(),) if self._tiers else ()

    def check(self) -> None:
        """The rank lives as long as this process."""

    def close(self) -> None:
        self._worker.close()
