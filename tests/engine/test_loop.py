"""The loop against a scripted API server and the fake executor."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core import (
    DeviceLostError,
    FinishReason,
    GenerationParams,
    PenstockError,
    Request,
    StepOutput,
    StepPlan,
    StepResult,
)
from penstock.engine import Engine
from penstock.engine.admin import KvAdmin
from penstock.engine.frontend import Cancel, EngineFrame, FrontFrame, Shutdown, Step
from penstock.engine.loop import MOST_FAILURES, QUIET, UnusableError
from penstock.engine.tiers import OpenedTiers
from penstock.executor import WorkersLostError
from penstock.kv import BlockHasher, KvCache
from penstock.scheduler import Limits, Scheduler
from tests.fakes.executor import FakeExecutor, hash_chain, hash_root
from tests.fakes.sampling import encode


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FrontDoor:
    """Answers each poll with the next item of the script: frames, or a function that looks at what
    was sent.

    When the script is over it says SHUTDOWN. A poll that may wait and has nothing lets its time
    pass.
    """

    def __init__(
        self, clock: Clock, script: list[list[FrontFrame] | Callable[[FrontDoor], list[FrontFrame]]]
    ) -> None:
        self.clock = clock
        self.script = script
        self.sent: list[Step] = []
        self.waits: list[float] = []

    def poll(self, timeout: float) -> list[FrontFrame]:
        self.waits.append(timeout)
        item = self.script.pop(0) if self.script else [Shutdown()]
        frames = item if isinstance(item, list) else item(self)
        if not frames:
            self.clock.now += timeout
        return frames

    def send(self, frame: EngineFrame) -> None:
        assert isinstance(frame, Step)
        self.sent.append(frame)

    def rows(self) -> list[StepOutput]:
        return [row for step in self.sent for row in step.outputs.rows()]


def request(request_id: int, prompt: list[int], max_tokens: int = 3) -> Request:
    return Request(
        request_id,
        array("i", prompt),
        GenerationParams(max_tokens=max_tokens, ignore_eos=True),
        100.0,
        sampling=encode(),
    )


def engine(
    front: FrontDoor,
    *,
    fail_at: tuple[int, ...] = (),
    depth: int = 1,
    stages: int = 1,
    executor: Any = None,
) -> tuple[Engine, Scheduler]:
    kv = KvCache(16, [64], hasher=BlockHasher(16, bytes(32), hash_chain, hash_root))
    limits = Limits(4, 32, 256, 10, 97, frozenset({0}), stages)
    scheduler = Scheduler(limits, kv, front.clock)
    executor = executor or FakeExecutor(
        num_blocks=64,
        block_size=16,
        max_num_seqs=4,
        max_batched_tokens=32,
        fail_at=fail_at,
        depth=depth,
    )
    admin = KvAdmin(kv, OpenedTiers(), list)
    return Engine(front, scheduler, executor, admin, front.clock), scheduler


def idle(times: int) -> list[list[FrontFrame] | Callable[[FrontDoor], list[FrontFrame]]]:
    return [[] for _ in range(times)]


def test_each_step_is_one_frame_with_the_tokens_of_all_requests() -> None:
    front = FrontDoor(Clock(), [[request(1, [5, 6]), request(2, [7])], *idle(3)])
    loop, scheduler = engine(front)
    loop.run()
    steps = [step for step in front.sent if step.batch_tokens]
    assert [step.step for step in steps] == [1, 2, 3]
    assert [step.batch_tokens for step in steps] == [3, 2, 2]
    assert [list(step.outputs.ids) for step in steps] == [[1, 2]] * 3
    assert [row.finish for row in front.rows()[-2:]] == [FinishReason.LENGTH] * 2
    assert scheduler.stats().blocks_used == 0


def test_an_idle_engine_waits_for_frames_and_sends_a_heartbeat_each_second() -> None:
    front = FrontDoor(Clock(), idle(8))
    loop, _ = engine(front)
    loop.run()
    heartbeats = [step for step in front.sent if not len(step.outputs)]
    assert len(heartbeats) >= 3
    assert {step.step for step in heartbeats} == {0}
    assert 1.0 in front.waits


def test_a_cancel_is_answered_within_one_step() -> None:
    front = FrontDoor(Clock(), [[request(1, [5], 50)], [], [Cancel((1, 99))], []])
    loop, scheduler = engine(front)
    loop.run()
    assert front.rows()[-1].finish is FinishReason.CANCELLED
    assert len(front.rows()) == 3
    assert scheduler.stats().blocks_used == 0


def test_what_was_left_before_it_arrived_is_answered_and_not_computed() -> None:
    """Ten may wait and four run: twelve that were left already leave room for the last."""
    left = [request(number, [5], 50) for number in range(1, 13)]
    cancels: list[FrontFrame] = [Cancel([each.id]) for each in left]
    front = FrontDoor(Clock(), [[*left, request(20, [7], 1), *cancels], *idle(3)])
    loop, _ = engine(front)
    loop.run()
    finishes = {row.id: row.finish for row in front.rows()}
    assert finishes.pop(20) is FinishReason.LENGTH
    assert set(finishes.values()) == {FinishReason.CANCELLED}
    assert len(front.rows()) == 13
    assert sum(step.batch_tokens for step in front.sent) == 1


def test_what_ends_without_a_step_is_answered_without_waiting() -> None:
    front = FrontDoor(Clock(), [[request(1, [96] * 300)], []])
    loop, _ = engine(front)
    loop.run()
    row = front.rows()[0]
    assert (row.finish, front.sent[0].step) == (FinishReason.UNFIT, 0)
    assert "maximum model length" in row.error


def test_shutdown_ends_all_requests_as_cancelled() -> None:
    front = FrontDoor(Clock(), [[request(1, [5], 50), request(2, [6], 50)], []])
    loop, scheduler = engine(front)
    loop.run()
    assert [row.finish for row in front.rows()[-2:]] == [FinishReason.CANCELLED] * 2
    assert not scheduler.has_requests()


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on() -> None:
    front = FrontDoor(Clock(), [[request(1, [5])], [request(2, [6])], *idle(4)])
    loop, _ = engine(front, fail_at=(1,))
    loop.run()
    rows = front.rows()
    assert (rows[0].id, rows[0].finish) == (1, FinishReason.ERROR)
    assert "failed in step 1" in rows[0].error
    assert rows[-1].finish is FinishReason.LENGTH


class Broken:
    depth = 1

    def submit(self, plan: object) -> None:
        raise RuntimeError("no device")

    def close(self) -> None: ...


def test_a_decoder_that_always_fails_is_given_up() -> None:
    front = FrontDoor(Clock(), [[request(number, [5])] for number in range(MOST_FAILURES + 1)])
    loop, _ = engine(front, executor=Broken())
    with pytest.raises(UnusableError, match="one after another"):
        loop.run()
    assert [row.finish for row in front.rows()] == [FinishReason.ERROR] * MOST_FAILURES


def test_a_lost_device_is_given_up_at_once() -> None:
    class Lost(Broken):
        def submit(self, plan: object) -> None:
            raise DeviceLostError("GPU 3 is lost")

    front = FrontDoor(Clock(), [[request(number, [5])] for number in range(MOST_FAILURES + 1)])
    loop, _ = engine(front, executor=Lost())
    with pytest.raises(UnusableError, match="GPU 3 is lost"):
        loop.run()
    assert [row.finish for row in front.rows()] == [FinishReason.ERROR]


def test_several_plans_are_in_flight_and_published_in_their_order() -> None:
    prompts = [request(1, [5] * 30, 4), request(2, [6] * 30, 4), request(3, [7], 4)]
    outputs = []
    for depth, stages in [(1, 1), (2, 2), (3, 3), (2, 1)]:
        front = FrontDoor(Clock(), [list(prompts), *idle(12)])
        loop, scheduler = engine(front, depth=depth, stages=stages)
        loop.run()
        steps = [step.step for step in front.sent if step.batch_tokens]
        assert steps == list(range(1, len(steps) + 1))
        assert scheduler.stats().blocks_used == 0
        tokens: dict[int, list[int]] = {1: [], 2: [], 3: []}
        for row in front.rows():
            tokens[row.id] += row.tokens
        outputs.append(tokens)
    assert outputs == outputs[:1] * 4


@pytest.mark.parametrize("stages", [1, 2])
def test_what_is_in_flight_at_a_shutdown_is_awaited(stages: int) -> None:
    front = FrontDoor(Clock(), [[request(1, [5], 50), request(2, [6], 50)], [], []])
    loop, scheduler = engine(front, depth=2, stages=stages)
    loop.run()
    assert [row.finish for row in front.rows()[-2:]] == [FinishReason.CANCELLED] * 2
    assert not scheduler.has_requests()
    scheduler.check()
    assert scheduler.stats().blocks_used == 0


class Lost:
    """An executor whose ranks are gone, which it says at `where`."""

    depth = 2

    def __init__(self, where: str) -> None:
        self.where = where

    def say(self, where: str) -> None:
        if where == self.where:
            raise WorkersLostError("rank 1 was killed")

    def submit(self, plan: object) -> Lost:
        self.say("submit")
        return self

    def result(self, timeout: float | None = None) -> None:
        self.say("result")

    def check(self) -> None:
        self.say("check")


@pytest.mark.parametrize("where", ["submit", "result", "check"])
def test_lost_ranks_end_the_loop(where: str) -> None:
    front = FrontDoor(Clock(), [[], [request(1, [5], 50)], *idle(4)])
    loop, _ = engine(front, executor=Lost(where))
    with pytest.raises(WorkersLostError, match="rank 1 was killed"):
        loop.run()


# Pauses -------------------------------------------------------------------------------------------


def with_pauses(front: FrontDoor, count: int, executor: Any) -> Engine:
    kv = KvCache(16, [64], hasher=BlockHasher(16, bytes(32), hash_chain, hash_root))
    scheduler = Scheduler(Limits(4, 32, 256, 10, 97, frozenset({0}), 1), kv, front.clock)
    admin = KvAdmin(kv, OpenedTiers(), list)
    return Engine(front, scheduler, executor, admin, front.clock, pauses=count)


class PausedExecutor(FakeExecutor):
    """Notes its plans; `error` is that of a pause."""

    def __init__(self, error: Exception | None = None) -> None:
        sizes = {"block_size": 16, "max_num_seqs": 4, "max_batched_tokens": 32}
        super().__init__(num_blocks=64, **sizes)
        self.plans: list[int] = []
        """Sequences of each."""
        self._error = error

    def submit(self, plan: StepPlan) -> Any:
        self.plans.append(len(plan.slots))
        future = super().submit(plan)
        if not plan.slots:
            self._queue.clear()
            future.outcome = self._error or StepResult()
        return future


def test_pauses_are_used_while_no_request_is_there() -> None:
    """After a silence each, so that a request which comes at once waits for none."""
    script = [*idle(2), [request(1, [5, 6])], *idle(5), [request(2, [7])], *idle(12)]
    front, executor = FrontDoor(Clock(), script), PausedExecutor()
    with_pauses(front, 4, executor).run()
    assert [row.finish for row in front.rows() if row.finish] == [FinishReason.LENGTH] * 2
    # Before requests, between them, and never beside one; no more than there is use for.
    assert executor.plans == [0, 1, 1, 1, 0, 1, 1, 1, 0, 0]
    assert front.waits.count(QUIET) >= 4
    assert 1.0 in [round(each, 1) for each in front.waits], "then it waits as ever"


def test_a_pause_that_fails_is_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    front = FrontDoor(Clock(), [*idle(4), [request(1, [5, 6])], *idle(3)])
    executor = PausedExecutor(PenstockError("no memory"))
    with_pauses(front, 9, executor).run()
    assert executor.plans == [0, 1, 1, 1]
    assert [row.finish for row in front.rows() if row.finish] == [FinishReason.LENGTH]
    assert "what was left for a pause failed" in caplog.text


def test_a_device_that_is_lost_in_a_pause_ends_the_engine() -> None:
    front = FrontDoor(Clock(), idle(9))
    with pytest.raises(UnusableError, match="GPU 0 is lost"):
        with_pauses(front, 9, PausedExecutor(DeviceLostError("GPU 0 is lost"))).run()
