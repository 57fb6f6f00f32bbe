"""The longest wait of a request that expires."""

from __future__ import annotations

from penstock.core import FinishReason, Request
from tests.scheduler.harness import World, make_request

PROMPT = list(range(3, 43))


def long_answer(request_id: int, prompt: list[int], expires: bool = False) -> Request:
    return make_request(request_id, prompt, 30, ignore_eos=True, expires=expires)


def test_a_request_whose_turn_does_not_come_in_time_is_refused() -> None:
    """Others of its client may wait, and so may what was preempted."""
    world = World(max_num_seqs=1, max_wait=10.0)
    world.add(long_answer(1, [1]))
    world.add(long_answer(2, [2], expires=True))
    world.add(long_answer(3, [3]))
    for _ in range(9):
        world.step()
    assert world.endings[2].finish is FinishReason.NONE
    while world.now < 12:
        world.step()
    assert world.endings[2].finish is FinishReason.REJECTED
    assert [row.error for row in world.endings[2].rows] == [
        "its turn did not come within 10 s (--max-queue-wait)"
    ]
    world.run()
    assert world.now > 40
    for request_id in (1, 3):
        assert world.endings[request_id].finish is FinishReason.LENGTH


def test_a_request_that_has_begun_does_not_expire() -> None:
    world = World(num_blocks=6, max_num_seqs=2, max_wait=5.0)
    for request_id in (1, 2):
        world.add(long_answer(request_id, PROMPT, expires=True))
    world.run()
    assert world.scheduler.stats().preemptions > 0
    for request_id in (1, 2):
        assert world.endings[request_id].finish is FinishReason.LENGTH


def test_a_request_that_waits_for_prompts_alone_does_not_expire() -> None:
    """All have slots and blocks; their prompts take six times the longest wait."""
    world = World(max_num_seqs=8, budget=8, prefix=False, max_wait=5.0)
    for request_id in range(6):
        world.add(make_request(request_id, PROMPT, 1, expires=True))
    world.run()
    assert world.now > 25
    for request_id in range(6):
        assert world.endings[request_id].finish is FinishReason.LENGTH
