"""The loop of a rank with a scripted channel and a scripted backend."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Loaded,
    Numerics,
    PenstockError,
    StepPlan,
    StepResult,
    WorkerFacts,
)
from penstock.core.codec import encode_plan
from penstock.core.progress import ProgressLine
from penstock.executor.ranks import RankTask
from penstock.executor.ranks.messages import (
    Computed,
    Failed,
    LoadStatus,
    Ready,
    decode_answer,
    encode_allocate,
)
from penstock.executor.worker import loop
from tests.fakes.backend import engine_config

FACTS = WorkerFacts(bytes(32), Numerics((), "none", "fake"), "none", 1, 0)
SPEC = KvSpec(16, (KvGroup((0,), 64),))


class Script:
    """Plans to hand out, and the answers to them."""

    capacity = 1 << 16

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.answers: list[bytes] = []

    def receive(self) -> bytes | None:
        return self.messages.pop(0) if self.messages else None

    def ready(self) -> bool:
        return bool(self.messages)

    def answer(self, message: bytes) -> None:
        self.answers.append(message)


class Backend:
    """Gives a result for a plan, or raises what `errors` has for its step or `allocate`."""

    facts = FACTS

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.steps: list[int] = []
        self.allocated: Allocation | None = None

    def kv_spec(self) -> KvSpec:
        return SPEC

    def free_memory(self) -> int:
        return 7

    def allocate(self, allocation: Allocation) -> None:
        if error := self.errors.get("allocate"):
            raise error
        self.allocated = allocation

    def submit(self, plan: StepPlan) -> Future:
        self.steps.append(plan.step)
        return Future(plan.step, self.errors.get(f"at{plan.step}"))


class Future:
    def __init__(self, step: int, error: Exception | None) -> None:
        self.step, self.error = step, error

    def result(self) -> StepResult:
        if self.error:
            raise self.error
        return StepResult(array("i", [1]), array("i", [self.step]))


@pytest.fixture(autouse=True)
def _no_collector_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("freeze", "disable"):
        monkeypatch.setattr(loop.gc, name, lambda: None)


def serve(script: Script, backend: Backend, number: int, reads: bool) -> bool:
    """`loop.serve` of a rank with `backend`; its answers to the start are checked and dropped."""
    task = RankTask(number, reads, engine_config().to_json(), "{}", "{}")
    script.messages.insert(0, encode_allocate(Allocation((8,), 3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "load_backend", lambda *_: backend)
        usable = loop.serve(loop.Rank(task, script.capacity), script)
    assert decode_answer(script.answers.pop(0)) == Loaded(FACTS, SPEC, 7)
    if backend.allocated == Allocation((8,), 3):
        assert decode_answer(script.answers.pop(0)) == Ready()
    return usable


def plans(count: int) -> list[bytes]:
    return [encode_plan(StepPlan(step)) for step in range(1, count + 1)]


def failures(script: Script) -> list[Failed]:
    answers = [decode_answer(message) for message in script.answers if message]
    return [answer for answer in answers if isinstance(answer, Failed)]


def test_progress_comes_before_the_facts() -> None:
    def load(*arguments: Any) -> Backend:
        arguments[-1](ProgressLine("half of it", 0.5))
        return Backend()

    script = Script()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "load_backend", load)
        task = RankTask(1, False, engine_config().to_json(), "{}", "{}")
        assert loop.serve(loop.Rank(task, script.capacity), script)
    found = [decode_answer(message) for message in script.answers]
    assert found == [LoadStatus(0.5, "half of it"), Loaded(FACTS, SPEC, 7)]


def test_the_reading_rank_answers_with_results_and_others_with_nothing() -> None:
    for reads in (True, False):
        script = Script(*plans(2))
        assert serve(script, Backend(), 3, reads)
        if reads:
            answers = [decode_answer(message) for message in script.answers]
            assert [answer.step for answer in answers if isinstance(answer, Computed)] == [1, 2]
        else:
            assert script.answers == [b"", b""]


def test_a_plan_that_cannot_be_computed_is_answered_and_the_next_one_is_computed() -> None:
    script = Script(*plans(3))
    backend = Backend(at2=ValueError("slot 9 was never registered"))
    assert serve(script, backend, 1, False)
    (failed,) = failures(script)
    assert (failed.rank, failed.step, failed.fatal, failed.derived) == (1, 2, False, False)
    assert failed.message == "ValueError: slot 9 was never registered"
    assert "in result" in failed.trace
    assert backend.steps == [1, 2, 3]


def test_an_unusable_backend_ends_the_loop_after_its_answer() -> None:
    for error, derived in (
        (RuntimeError("out of luck"), False),
        (ConnectionError("rank 0 is gone"), True),
    ):
        script = Script(*plans(3))
        backend = Backend(at2=error)
        assert not serve(script, backend, 1, True)
        (failed,) = failures(script)
        assert (failed.fatal, failed.derived) == (True, derived)
        assert backend.steps[:2] == [1, 2]
        assert len(script.answers) == 2


def test_bytes_that_are_no_plan_end_the_loop() -> None:
    script = Script(b"nonsense", *plans(1))
    backend = Backend()
    assert not serve(script, backend, 0, True)
    (failed,) = failures(script)
    assert (failed.step, failed.fatal, failed.trace) == (0, True, "")
    assert backend.steps == []


def test_known_errors_need_no_traceback() -> None:
    script = Script(*plans(1))
    assert not serve(script, Backend(at1=PenstockError("no such tensor")), 0, True)
    (failed,) = failures(script)
    assert (failed.message, failed.trace) == ("no such tensor", "")


def test_blocks_that_cannot_be_allocated_end_the_loop_with_the_reason() -> None:
    script = Script(*plans(1))
    backend = Backend(allocate=PenstockError("8 blocks need 1 TiB"))
    assert not serve(script, backend, 2, True)
    (failed,) = failures(script)
    assert (failed.rank, failed.step, failed.fatal) == (2, 0, True)
    assert (failed.message, failed.trace) == ("8 blocks need 1 TiB", "")
    assert backend.steps == []


def test_a_backend_that_cannot_load_ends_the_loop_with_the_reason() -> None:
    config = engine_config().to_json().replace("tests.fakes.backend", "tests.nowhere")
    script = Script(*plans(1))
    assert not loop.serve(loop.Rank(RankTask(1, True, config, "{}", "{}"), 1 << 16), script)
    (failed,) = failures(script)
    assert (failed.rank, failed.fatal) == (1, True)
    assert "No module named 'tests.nowhere'" in failed.message


def test_the_next_plan_starts_before_the_last_result_is_answered() -> None:
    """And only then: a plan that fails may have the next one behind it."""
    script, backend = Script(*plans(3)), Backend(at2=ValueError("out of range"))
    started: list[list[int]] = []
    answer = script.answer

    def recorded(message: bytes) -> None:
        started.append(list(backend.steps))
        answer(message)

    script.answer = recorded  # type: ignore[method-assign]
    assert serve(script, backend, 1, True)
    assert started == [[], [], [1, 2], [1, 2, 3], [1, 2, 3]]
    assert [type(decode_answer(message)) for message in script.answers] == [
        Computed,
        Failed,
        Computed,
    ]
