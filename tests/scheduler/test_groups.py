"""KV groups: a window bounds the blocks of a sequence, a prefix hit needs those it sees."""

from __future__ import annotations

import pytest

from penstock.core import FinishReason, Request
from penstock.kv import window_blocks
from tests.scheduler.harness import World, make_request

PROMPT = [(3 * at) % 90 + 1 for at in range(200)]


def answer(request_id: int, prompt: list[int], max_tokens: int = 30) -> Request:
    return make_request(request_id, prompt, max_tokens, ignore_eos=True)


def play(world: World, request: Request) -> int:
    """Cached tokens of a request that is computed to its end."""
    world.add(request)
    world.run()
    ending = world.endings[request.id]
    assert (ending.tokens, ending.finish) == world.reference(request)
    return ending.rows[0].cached_tokens


def used(world: World) -> list[int]:
    return [pool.num_blocks - pool.available for pool in world.kv.pools]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_window_bounds_the_blocks_of_a_sequence_whatever_its_length(in_flight: int) -> None:
    bound = window_blocks(40, 32, 16)
    world = World(
        num_blocks=[70, bound],
        windows=[None, 40],
        max_model_len=1100,
        in_flight=in_flight,
        stages=1,
    )
    world.add(answer(1, [(7 * at) % 90 + 1 for at in range(500)], 500))
    while world.scheduler.has_requests():
        world.step()
        assert used(world)[1] <= bound
        if len(world.endings[1].tokens) > 3:
            assert used(world)[1] <= window_blocks(40, 2, 16), "decoding needs less"
    assert world.endings[1].finish is FinishReason.LENGTH
    world.run()
    assert used(world) == [0, 0]


def test_a_window_group_runs_out_of_blocks_by_itself() -> None:
    world = World(num_blocks=[40, 6], windows=[None, 40], prefix=False)
    requests = [answer(number, [number] * 15, 60) for number in (1, 2, 3)]
    for request in requests:
        world.add(request)
    world.run()
    assert world.scheduler.stats().preemptions > 0
    for request in requests:
        assert world.endings[request.id].tokens == world.reference(request)[0]


def test_a_long_prompt_preempts_later_arrivals_for_its_window() -> None:
    """The first one's chunks need more blocks than it was admitted with."""
    world = World(num_blocks=[60, 8], windows=[None, 64], max_num_seqs=3, prefix=False)
    requests = [answer(1, PROMPT, 5), answer(2, [5] * 20, 40), answer(3, [6] * 20, 40)]
    for request in requests:
        world.add(request)
    world.run()
    for request in requests:
        assert world.endings[request.id].tokens == world.reference(request)[0]
    firsts = [world.endings[number].rows[-1] for number in (1, 2)]
    assert all(row.finish is FinishReason.LENGTH for row in firsts)


def test_a_repeated_prompt_is_found_though_its_window_has_passed() -> None:
    world = World(windows=[None, 40], max_model_len=400)
    assert play(world, answer(1, PROMPT[:160], 100)) == 0
    assert play(world, answer(2, PROMPT[:160], 3)) == 144


def test_a_hit_is_missed_when_blocks_of_its_window_are_gone() -> None:
    world = World(windows=[None, 40], max_model_len=400)
    play(world, answer(1, PROMPT[:160], 60))
    window = world.kv.pools[1]
    taken = [window.take() for _ in range(window.available)]
    window.release(taken)
    assert world.kv.pools[0].named > 8
    assert play(world, answer(2, PROMPT[:160], 3)) == 0


def test_a_shorter_hit_is_found_behind_the_gap() -> None:
    world = World(windows=[None, 40], max_model_len=400)
    play(world, answer(1, PROMPT[:160], 3))
    assert world.kv.hasher is not None
    digests = world.kv.hasher.digests(answer(0, PROMPT).prompt, [], b"")
    world.kv.pools[1].forget(digests[7])
    # A hit of 8 to 10 blocks would see block 7; one of 7 sees 4 to 6.
    assert play(world, answer(2, PROMPT[:160], 3)) == 7 * 16
    assert play(world, answer(3, PROMPT[:160], 3)) == 9 * 16, "which fills the gap"


def test_a_prefix_in_flight_is_shared_in_all_groups() -> None:
    world = World(windows=[24, None], budget=32, max_model_len=400)
    requests = [answer(number, [*PROMPT[:150], number]) for number in (1, 2, 3)]
    for request in requests:
        world.add(request)
    world.run()
    for request in requests:
        assert world.endings[request.id].tokens == world.reference(request)[0]
    assert [world.endings[number].rows[0].cached_tokens for number in (1, 2, 3)] == [0, 144, 144]


def test_a_request_too_large_for_one_pool_names_it() -> None:
    world = World(num_blocks=[64, 3], windows=[None, 40])
    world.add(answer(1, PROMPT))
    world.collect()
    assert "needs 6 KV blocks of 16 tokens, the pool has 3" in world.endings[1].rows[0].error


@pytest.mark.parametrize("windows", [[None], [None, 40]])
def test_a_plan_carries_what_tables_gained_whatever_the_context(windows: list[int | None]) -> None:
    world = World(windows=windows, max_model_len=1100, num_blocks=80)
    world.add(answer(1, [1] * 500, 400))
    world.run()
    decodes = [plan for plan in world.plans if len(plan.tokens) == 1]
    assert len(decodes) == 399
    assert max(len(plan.added) for plan in decodes) <= len(windows)
    assert sum(len(plan.added) for plan in world.plans) == 57 * len(windows)
