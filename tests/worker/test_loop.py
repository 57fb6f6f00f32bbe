"""The loop of a rank with a scripted channel and a worker that does as it is told."""

from __future__ import annotations

from array import array

from penstock.core import PenstockError, StepPlan, StepResult
from penstock.core.answers import Computed, Failed, decode_answer
from penstock.core.codec import encode_plan
from penstock.worker.loop import serve


class Script:
    """Plans to hand out, and the answers to them."""

    capacity = 1 << 16

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.answers: list[bytes] = []

    def receive(self) -> bytes | None:
        return self.messages.pop(0) if self.messages else None

    def answer(self, message: bytes) -> None:
        self.answers.append(message)


class Worker:
    """Gives a result for a plan, or raises what `errors` has for its step."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = {int(step.removeprefix("at")): error for step, error in errors.items()}
        self.steps: list[int] = []

    def submit(self, plan: StepPlan) -> Worker:
        self.steps.append(plan.step)
        return self

    def result(self) -> StepResult:
        if error := self.errors.get(self.steps[-1]):
            raise error
        return StepResult(array("i", [1]), array("i", [self.steps[-1]]))


def plans(count: int) -> list[bytes]:
    return [encode_plan(StepPlan(step)) for step in range(1, count + 1)]


def failures(script: Script) -> list[Failed]:
    answers = [decode_answer(message) for message in script.answers if message]
    return [answer for answer in answers if isinstance(answer, Failed)]


def test_the_reading_rank_answers_with_results_and_others_with_nothing() -> None:
    for reads in (True, False):
        script = Script(*plans(2))
        assert serve(script, Worker(), 3, reads)
        if reads:
            answers = [decode_answer(message) for message in script.answers]
            assert [answer.step for answer in answers if isinstance(answer, Computed)] == [1, 2]
        else:
            assert script.answers == [b"", b""]


def test_a_plan_that_cannot_be_computed_is_answered_and_the_next_one_is_computed() -> None:
    script = Script(*plans(3))
    worker = Worker(at2=ValueError("slot 9 was never registered"))
    assert serve(script, worker, 1, False)
    (failed,) = failures(script)
    assert (failed.rank, failed.step, failed.fatal, failed.derived) == (1, 2, False, False)
    assert failed.message == "ValueError: slot 9 was never registered"
    assert "in result" in failed.trace
    assert worker.steps == [1, 2, 3]


def test_an_unusable_worker_ends_the_loop_after_its_answer() -> None:
    for error, derived in (
        (RuntimeError("out of luck"), False),
        (ConnectionError("rank 0 is gone"), True),
    ):
        script = Script(*plans(3))
        worker = Worker(at2=error)
        assert not serve(script, worker, 1, True)
        (failed,) = failures(script)
        assert (failed.fatal, failed.derived) == (True, derived)
        assert worker.steps == [1, 2]


def test_bytes_that_are_no_plan_end_the_loop() -> None:
    script = Script(b"nonsense", *plans(1))
    worker = Worker()
    assert not serve(script, worker, 0, True)
    (failed,) = failures(script)
    assert (failed.step, failed.fatal, failed.trace) == (0, True, "")
    assert worker.steps == []


def test_known_errors_need_no_traceback() -> None:
    script = Script(*plans(1))
    assert not serve(script, Worker(at1=PenstockError("no such tensor")), 0, True)
    (failed,) = failures(script)
    assert (failed.message, failed.trace) == ("no such tensor", "")
