"""Transfers in a rank: not in the way of steps, not stopped by them, and all answered."""

from __future__ import annotations

import threading
from array import array
from queue import SimpleQueue

import pytest

from penstock.core import PenstockError, StepPlan, StepResult
from penstock.core.codec import encode_plan
from penstock.core.progress import Report, silent
from penstock.core.transfer import OpenTiers, Transfer, TransferKind, TransferResult
from penstock.executor.ranks import RankTask
from penstock.executor.ranks.messages import (
    Answer,
    Computed,
    Failed,
    MoverClosed,
    MoverReport,
    TransferResults,
    decode_answer,
    encode_answer,
)
from penstock.executor.ranks.transfers import END, encode_open, encode_transfer
from penstock.executor.worker import loop
from tests.limits import HANG

OPEN = encode_open(OpenTiers("c0ffee", 7, 1.5))


class Script:
    """Both ends of a channel."""

    capacity = 1 << 16

    def __init__(self) -> None:
        self.messages: SimpleQueue[bytes | None] = SimpleQueue()
        self.answers: SimpleQueue[bytes] = SimpleQueue()

    def receive(self) -> bytes | None:
        return self.messages.get()

    def ready(self) -> bool:
        return not self.messages.empty()

    def answer(self, message: bytes) -> None:
        self.answers.put(message)

    def say(self, *messages: bytes | None) -> None:
        for message in messages:
            self.messages.put(message)

    def hear(self) -> Answer:
        return decode_answer(self.answers.get(timeout=HANG))

    def hear_of(self, kind: type) -> Answer:
        """The next answer but reports, which come at any time after the first."""
        while isinstance(answer := self.hear(), MoverReport):
            pass
        assert isinstance(answer, kind), answer
        return answer


class Backend:
    """Steps last until `go`; transfers are answered by `move`. Its own mover."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.error = error
        self.opened: OpenTiers | None = None
        self.closed: float | None = None
        self.go = threading.Semaphore(0)
        self.steps: list[int] = []
        self.transfers: SimpleQueue[Transfer] = SimpleQueue()
        self.over: SimpleQueue[TransferResult] = SimpleQueue()

    def submit(self, work: StepPlan | Transfer) -> Backend:
        if isinstance(work, Transfer):
            return self._transfer(work)
        self.steps.append(work.step)
        return self

    def result(self) -> StepResult:
        assert self.go.acquire(timeout=HANG)
        return StepResult(array("i", [1]), array("i", [self.steps[-1]]))

    def open_tiers(self, tiers: OpenTiers) -> Backend:
        if isinstance(self.error, PenstockError):
            raise self.error
        self.opened = tiers
        return self

    def _transfer(self, transfer: Transfer) -> Backend:
        if self.error:
            raise self.error
        self.transfers.put(transfer)
        return self

    def move(self) -> None:
        self.over.put(TransferResult(self.transfers.get(timeout=HANG).id, True))

    def take(self, timeout: float) -> list[TransferResult]:
        from queue import Empty

        try:
            return [self.over.get(timeout=timeout)]
        except Empty:
            return []

    def report(self) -> str:
        return f'{{"steps": {len(self.steps)}}}'

    def close(self, seconds: float) -> None:
        self.closed = seconds


class LoadedRank(loop.Rank):
    def load(self, _report: Report = silent) -> bytes:
        return encode_answer(MoverReport(""))


class Rank:
    """A loaded rank in a thread."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.script = Script()
        self.usable: bool | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.script.hear() == MoverReport("")

    def _run(self) -> None:
        rank = LoadedRank(RankTask(3, True, "", "", ""), self.script.capacity)
        rank.backend = self.backend  # type: ignore[assignment]
        self.usable = loop.serve(rank, self.script)

    def end(self) -> bool | None:
        self._thread.join(HANG)
        assert not self._thread.is_alive()
        return self.usable


def load(number: int, after: int = 0) -> bytes:
    transfer = Transfer(number, TransferKind.LOAD, 1, array("i", [1]), keys=bytes(32))
    return encode_transfer(transfer, after)


def plan(step: int) -> bytes:
    return encode_plan(StepPlan(step))


def test_tiers_are_opened_with_what_the_engine_says_and_closed_when_it_says_so() -> None:
    rank = Rank(Backend())
    rank.script.say(OPEN)
    assert rank.script.hear() == MoverReport('{"steps": 0}')
    assert rank.backend.opened == OpenTiers("c0ffee", 7, 1.5)
    rank.script.say(END)
    rank.script.hear_of(MoverClosed)
    assert rank.backend.closed == 1.5
    rank.script.say(None)
    assert rank.end()


def test_tiers_that_cannot_be_opened_end_the_rank_with_the_reason() -> None:
    rank = Rank(Backend(error=PenstockError("disk:/kv is not writable")))
    rank.script.say(OPEN)
    failed = rank.script.hear()
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.message, failed.fatal) == (3, "disk:/kv is not writable", True)
    assert rank.end() is False


def test_transfers_begin_and_end_while_a_step_is_computed() -> None:
    rank = Rank(Backend())
    rank.script.say(OPEN, plan(1), load(1), plan(2), load(2))
    rank.script.hear()
    for number in (1, 2):
        rank.backend.move()
        answer = rank.script.hear_of(TransferResults)
        assert isinstance(answer, TransferResults)
        assert [moved.id for moved in answer.results] == [number]
    rank.backend.go.release(2)
    for step in (1, 2):
        answer = rank.script.hear_of(Computed)
        assert isinstance(answer, Computed)
        assert (answer.step, list(answer.result.tokens)) == (step, [step])
    rank.script.say(None)
    assert rank.end()


def test_a_transfer_waits_for_the_plans_before_it_and_no_others() -> None:
    rank = Rank(Backend())
    rank.script.say(OPEN, plan(1), plan(2), plan(3), load(1, after=2))
    rank.script.hear()
    for step in (1, 2):
        assert rank.backend.transfers.empty()
        rank.backend.go.release()
        answer = rank.script.hear_of(Computed)
        assert isinstance(answer, Computed)
        assert answer.step == step
    rank.backend.move()
    rank.script.hear_of(TransferResults)
    rank.backend.go.release()
    rank.script.hear_of(Computed)
    rank.script.say(None)
    assert rank.end()


def test_a_report_comes_when_there_is_something_new() -> None:
    rank = Rank(Backend())
    rank.script.say(OPEN, plan(1))
    rank.backend.go.release()
    rank.script.hear()
    rank.script.hear_of(Computed)
    assert rank.script.hear() == MoverReport('{"steps": 1}')
    rank.script.say(None)
    assert rank.end()


@pytest.mark.parametrize("nonsense", [b"T and more", load(1)])
def test_a_transfer_that_cannot_be_taken_ends_the_rank_with_the_reason(nonsense: bytes) -> None:
    rank = Rank(Backend(error=RuntimeError("out of luck")))
    rank.script.say(OPEN, nonsense)
    rank.script.hear()
    failed = rank.script.hear_of(Failed)
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.step, failed.fatal) == (3, 0, True)
    rank.end()


def test_without_tiers_a_transfer_is_no_plan() -> None:
    rank = Rank(Backend())
    rank.script.say(load(1))
    assert isinstance(rank.script.hear(), Failed)
    assert rank.end() is False
