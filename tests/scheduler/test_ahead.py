"""Plans made before the results that they continue: same output, fewer gaps, isolated failures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from penstock.core import FinishReason, Request, StepPlan
from penstock.core.plan import LAST_SAMPLED
from tests.scheduler.harness import RandomDrafter, World, make_request


def long_answer(request_id: int, prompt: list[int], max_tokens: int = 30) -> Request:
    return make_request(request_id, prompt, max_tokens, ignore_eos=True)


def ahead(**options: object) -> World:
    return World(in_flight=2, stages=1, **options)  # type: ignore[arg-type]


def is_ahead(plan: StepPlan) -> bool:
    return set(plan.tokens) == {LAST_SAMPLED}


def check(world: World, requests: Sequence[Request]) -> None:
    for request in requests:
        ending = world.endings[request.id]
        assert (ending.tokens, ending.finish) == world.reference(request)


def test_all_steps_but_the_first_of_a_lone_request_are_planned_ahead() -> None:
    world, request = ahead(), long_answer(1, [1, 2, 3], 20)
    world.add(request)
    world.run()
    check(world, [request])
    assert [is_ahead(plan) for plan in world.plans] == [False] + [True] * 19
    assert world.executor.computed == 3 + 19, "no row is wasted on a length that is known"


def test_a_stop_token_wastes_one_row() -> None:
    world = ahead()
    request = make_request(1, [1, 2, 3], 30, ignore_eos=True)
    output, _ = world.reference(request)
    at = next(at for at in range(5, 30) if output[at] not in output[:at])
    stopped = make_request(2, [1, 2, 3], 30, ignore_eos=True, stop_token_ids=(output[at],))
    world.add(stopped)
    world.run()
    check(world, [stopped])
    assert world.executor.computed == 3 + at + 1
    assert world.scheduler.stats().blocks_used == 0


def test_an_ended_request_keeps_slot_and_blocks_until_its_last_plan_is_applied() -> None:
    world = ahead()
    world.add(long_answer(1, [1, 2, 3]))
    for _ in range(4):
        world.step()
    world.scheduler.cancel(1)
    world.collect()
    assert world.endings[1].finish is FinishReason.CANCELLED
    assert not world.scheduler.has_requests()
    stats = world.scheduler.stats()
    assert (stats.running, stats.blocks_used) == (0, 1)
    world.scheduler.check()
    world.step()
    assert world.scheduler.stats().blocks_used == 0
    world.scheduler.check()


def test_nothing_is_planned_ahead_of_a_prompt() -> None:
    world = ahead(budget=32)
    world.add(long_answer(1, [1, 2, 3]))
    world.step()
    world.add(long_answer(2, list(range(1, 81))))
    while not world.endings[2].tokens:
        plan = world.step()
        assert plan is None or len(plan.tokens) > 1 or plan.step <= 2
    world.run()
    check(world, [long_answer(1, [1, 2, 3]), long_answer(2, list(range(1, 81)))])


def test_nothing_is_planned_ahead_of_a_newcomer_that_could_enter() -> None:
    world = ahead(max_num_seqs=2)
    world.add(long_answer(1, [1], 4))
    world.add(long_answer(2, [2], 30))
    for _ in range(3):
        world.step()
    world.add(long_answer(3, [3]))
    plans = [world.step() for _ in range(4)]
    entered = next(at for at, plan in enumerate(plans) if plan and plan.registrations)
    # The first request ends by its length in a plan in flight: the next one waits for its slot.
    assert plans[entered - 1] is None
    world.run()
    check(world, [long_answer(1, [1], 4), long_answer(2, [2], 30), long_answer(3, [3])])


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 1), ({"arrivals": False}, 19), ({"ahead_seconds": math.inf}, 19)],
    ids=["server", "batch", "gpu"],
)
def test_nothing_is_planned_ahead_of_long_steps_of_a_cpu_that_serves(
    options: dict[str, object], expected: int
) -> None:
    world = ahead(step_seconds=lambda plan: 0.05, **options)
    request = long_answer(1, [1], 20)
    world.add(request)
    world.run()
    check(world, [request])
    assert sum(map(is_ahead, world.plans)) == expected


def test_a_full_house_is_planned_ahead_though_others_wait() -> None:
    world = ahead(max_num_seqs=1)
    world.add(long_answer(1, [1], 20))
    world.add(long_answer(2, [2], 20))
    for _ in range(10):
        world.step()
    assert all(is_ahead(plan) for plan in world.plans[1:])


def test_a_plan_that_would_preempt_waits_for_results() -> None:
    world = ahead(num_blocks=4, max_num_seqs=2, prefix=False)
    requests = [long_answer(number, [number + 1] * 15, 40) for number in range(2)]
    for request in requests:
        world.add(request)
    world.run()
    check(world, requests)
    assert world.scheduler.stats().preemptions > 0
    assert sum(map(is_ahead, world.plans)) > 20


def test_nothing_is_planned_ahead_of_drafts() -> None:
    from random import Random

    world, request = ahead(drafter=RandomDrafter(Random(1))), long_answer(1, [1, 2, 3], 60)
    world.add(request)
    world.run()
    check(world, [request])
    assert not any(map(is_ahead, world.plans))


def test_with_stages_tokens_come_from_the_host() -> None:
    world = World(in_flight=2, stages=2)
    requests = [long_answer(number, [number + 1], 20) for number in range(3)]
    for request in requests:
        world.add(request)
    world.run()
    check(world, requests)
    assert not any(LAST_SAMPLED in plan.tokens for plan in world.plans)


# Failures -----------------------------------------------------------------------------------------


def test_a_failed_step_ends_its_requests_though_another_step_was_planned_on_them() -> None:
    world = ahead(fail_at=[3])
    world.add(long_answer(1, [1, 2]))
    world.step()
    world.step()
    world.step()
    world.add(long_answer(2, [3, 4], 10))
    world.run()
    assert world.endings[1].finish is FinishReason.ERROR
    assert "told to fail" in world.endings[1].rows[-1].error
    check(world, [long_answer(2, [3, 4], 10)])
    assert world.scheduler.stats().blocks_used == 0


def test_requests_that_were_in_no_failed_step_go_on() -> None:
    world = ahead(max_num_seqs=2, fail_at=[3, 7])
    requests = [long_answer(number, [number], 12) for number in range(1, 7)]
    for request in requests:
        world.add(request)
    world.run()
    failed = [number for number, ending in world.endings.items() if ending.rows[-1].error]
    assert failed == [1, 2, 3, 4]
    assert all("told to fail" in world.endings[number].rows[-1].error for number in failed)
    check(world, requests[4:])
    assert world.scheduler.stats().blocks_used == 0
