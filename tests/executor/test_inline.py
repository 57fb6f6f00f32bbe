import sys
from types import ModuleType

import pytest
from penstock.core import StepPlan, StepResult, WorkerFacts
from penstock.core.transfer import Moved, OpenTiers, Transfer, TransferKind
from penstock.executor.inline import InlineExecutor

FACTS = WorkerFacts(bytes(32), "fake", "none", 1, 0)


class Done:
    def __init__(self, step: int) -> None:
        self.step = step

    def result(self, timeout: float | None = None) -> StepResult:
        return StepResult()


class Worker:
    facts = FACTS
    closed = False

    def submit(self, plan: StepPlan) -> Done:
        return Done(plan.step)

    def open_tiers(self, tiers: OpenTiers) -> None:
        self.opened = tiers

    def transfer(self, transfer: Transfer) -> None:
        self.over = [Moved(transfer.id, True)]

    def moved(self, timeout: float) -> list[Moved]:
        assert timeout == 0.0
        over, self.over = self.over, []
        return over

    def mover_report(self) -> str:
        return "{}"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Made by `InlineExecutor("fake_worker")`."""
    module, made = ModuleType("fake_worker"), Worker()
    module.create = lambda: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_worker", module)
    return made


def test_the_worker_is_made_by_name_with_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_worker")
    worker = Worker()
    given: list[object] = []
    module.create = lambda *arguments: given.extend(arguments) or worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_worker", module)
    executor = InlineExecutor("fake_worker", "config", 7)
    assert given == ["config", 7]
    assert executor.facts == (FACTS,)
    assert executor.depth == 1
    executor.check()
    assert executor.submit(StepPlan(3)).result() == StepResult()
    executor.close()
    assert worker.closed


def test_transfers_go_straight_to_the_worker(worker: Worker) -> None:
    executor = InlineExecutor("fake_worker")
    assert executor.mover_reports() == ()
    executor.open_tiers(OpenTiers("c0ffee", 1, 1.0))
    assert worker.opened == OpenTiers("c0ffee", 1, 1.0)
    assert executor.mover_reports() == ("{}",)
    executor.transfer(Transfer(7, TransferKind.REMOVE, keys=bytes(32)))
    assert executor.moved() == [Moved(7, True)]
    assert executor.moved() == []
