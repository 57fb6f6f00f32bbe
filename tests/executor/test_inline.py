import sys
from types import ModuleType

import pytest
from penstock.core import StepPlan, StepResult, WorkerFacts
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

    def close(self) -> None:
        self.closed = True


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
