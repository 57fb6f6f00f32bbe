"""Sequences whose token masks are late: their rows are computed again, and hold up no other."""

from __future__ import annotations

import math

import pytest

from tests.scheduler.harness import World, make_request


def test_a_late_mask_holds_up_no_other_sequence() -> None:
    late = True
    world = World(late=lambda: late, in_flight=2, stages=1)
    world.add(make_request(1, [1, 2, 3], 8, ignore_eos=True, grammar=b"slow"))
    world.add(make_request(2, [4, 5, 6], 40, ignore_eos=True))
    for _ in range(60):
        world.step()
    assert len(world.endings[2].tokens) == 40
    assert world.endings[1].rows == []
    late = False
    world.run()
    for request_id, prompt in ((1, [1, 2, 3]), (2, [4, 5, 6])):
        most = 8 if request_id == 1 else 40
        request = make_request(request_id, prompt, most, ignore_eos=True)
        assert world.endings[request_id].tokens == world.reference(request)[0]


def test_a_row_with_a_late_mask_is_computed_again_less_and_less_often() -> None:
    world = World(late=lambda: True)
    world.add(make_request(1, [1, 2, 3], grammar=b"slow"))
    assert world.scheduler.next_retry() == math.inf
    waits = []
    for _ in range(6):
        plan = world.scheduler.schedule()
        assert plan is not None
        world.scheduler.apply(plan, world.executor.submit(plan).result())
        waits.append(world.scheduler.next_retry())
        assert world.scheduler.schedule() is None
        world.now += waits[-1]
    assert waits == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.05, 0.05])


def test_what_a_late_sequence_would_publish_is_computed_by_others() -> None:
    """Its last block is full of known tokens, but the last of them is computed again."""
    prompt = list(range(1, 33))
    world = World(late=lambda: True, budget=64)
    world.add(make_request(1, prompt, grammar=b"slow"))
    world.step()
    world.step()
    world.add(make_request(2, [*prompt, 50, 51], ignore_eos=True))
    for _ in range(12):
        world.step()
    assert len(world.endings[2].tokens) == 4
    world.executor.late = lambda: False
    world.run()


def test_a_preempted_sequence_with_a_late_mask_ends_as_it_would_alone() -> None:
    turns = iter([True, True, False] * 400)
    world = World(num_blocks=6, late=lambda: next(turns), in_flight=2, stages=1)
    requests = [
        make_request(at, [at] * 14, 40, ignore_eos=True, grammar=b"slow" if at % 2 else b"")
        for at in (1, 2, 3)
    ]
    for request in requests:
        world.add(request)
    world.run()
    assert world.scheduler.stats().preemptions
    for request in requests:
        assert world.endings[request.id].tokens == world.reference(request)[0]
