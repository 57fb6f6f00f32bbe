"""Tiers behind KV groups with windows: all groups are stored, what the rest of a prompt sees is
loaded, and a load that is lost leaves nothing to compute with.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import RAM, TransferKind
from penstock.kv import window_blocks
from tests.scheduler.harness import make_request
from tests.scheduler.tier_world import BLOCK, CHUNK, TierWorld, prompt

WINDOWS = [(None, 24), (40, None), (20,), (16, None, 50)]
Windows = Sequence[int | None]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize(("named", "ram_slots"), [(1, 0), (0, 64), (2, 64)])
@pytest.mark.parametrize("length", [15, 16, 17, 63, 64, 65, 100, 128, 130])
def test_a_prompt_that_was_computed_once_is_loaded(
    windows: Windows, named: int, ram_slots: int, length: int
) -> None:
    world = TierWorld(windows=windows, named=named, ram_slots=ram_slots)
    world.keep(prompt(length), ignore_eos=True)
    computed = world.finish(make_request(2, prompt(length), ignore_eos=True))
    kept = min(length // BLOCK * BLOCK, length - 1)
    assert world.endings[2].rows[0].cached_tokens == kept
    assert computed == length - kept + 3, "the rest of the prompt and three tokens more"


@pytest.mark.parametrize(("named", "ram_slots"), [(1, 0), (0, 64)])
def test_a_group_with_a_window_gets_what_the_rest_of_the_prompt_sees(
    named: int, ram_slots: int
) -> None:
    world = TierWorld(windows=(None, 24), named=named, ram_slots=ram_slots)
    world.keep(prompt(200), max_tokens=1)
    world.finish(make_request(2, prompt(200), max_tokens=1))
    full, windowed = [], []
    for load in world.asked(TransferKind.LOAD):
        count = len(load.blocks) // 2
        full += load.blocks[:count]
        windowed += load.blocks[count:]
    assert NO_BLOCK not in full
    # The token at 192 sees 169 to 192: blocks 10 and 11.
    assert [block != NO_BLOCK for block in windowed] == [False] * 10 + [True] * 2


def test_what_the_pool_has_is_not_loaded_into_a_window() -> None:
    world = TierWorld(windows=(None, 40))
    world.finish(make_request(1, prompt(130), max_tokens=1))
    world.settle()
    world.forget_names(prompt(130), 4)
    assert world.finish(make_request(2, prompt(130), max_tokens=1)) == 2
    (load,) = world.asked(TransferKind.LOAD)
    # The token at 128 sees 89 to 128: blocks 5 to 7.
    assert [block != NO_BLOCK for block in load.blocks] == [True] * 4 + [False] + [True] * 3


def test_loads_and_stores_leave_the_blocks_of_a_window_bounded() -> None:
    bound = window_blocks(40, 32, BLOCK)
    world = TierWorld(
        windows=(None, 40), num_blocks=[70, bound + CHUNK], max_model_len=1100, ram_slots=70
    )
    for number in (1, 2):
        request = make_request(number, prompt(900), max_tokens=100, ignore_eos=True)
        world.add(request)
        while world.scheduler.has_requests():
            world.step()
        world.check_output(request)
        world.settle()
        world.forget_pool()
    assert world.stats.tiers[RAM].hit_tokens == 896


def test_chunks_are_stored_whose_first_blocks_the_window_has_passed() -> None:
    """They keep their names, and leave the pool last."""
    world = TierWorld(windows=(None, 20), auto=False)
    world.keep(prompt(10), max_tokens=150, ignore_eos=True)
    assert len(world.mover.tiers[0]) == 3, "two chunks, and the tail"
    assert not world.stats.tiers[1].dropped_stores


def test_a_chunk_is_not_stored_when_a_group_has_lost_a_block_of_it() -> None:
    world = TierWorld(windows=(None, 20), auto=False)
    world.mover.stall(1)
    world.finish(make_request(1, prompt(200), max_tokens=1))
    window, stored = world.kv.pools[1], len(world.asked(TransferKind.STORE))
    window.release([window.take() for _ in range(window.available)])
    world.mover.heal(1)
    world.settle()
    assert len(world.asked(TransferKind.STORE)) == stored == len(world.mover.tiers[0])
    assert world.stats.tiers[1].dropped_stores == 3 - stored


@pytest.mark.parametrize("how", ["error", "lost", "stall"])
@pytest.mark.parametrize("windows", WINDOWS)
def test_a_lost_load_is_computed_in_other_blocks(how: str, windows: Windows) -> None:
    world = TierWorld(windows=windows, auto=False, per_token=1e-2)
    world.keep(prompt(200))
    request, later = make_request(2, prompt(200)), make_request(3, prompt(60, seed=3))
    world.begin_loads(request)
    world.add(later)
    loads = len(world.asked(TransferKind.LOAD))
    assert world.mover.step(), "a segment is loaded"
    world.step()
    if how == "stall":
        world.mover.stall(1)
    elif how == "error":
        world.mover.fail(world.mover.waiting[0].id, "the disk is gone")
    else:
        world.mover.tiers[0].clear()
        world.mover.step()
    for _ in range(400):
        world.step()
        world.mover.settle()
    for each in (request, later):
        world.check_output(each)
    assert len(world.asked(TransferKind.LOAD)) == loads, "it does not load again"
    assert world.endings[2].rows[0].cached_tokens == 0
    assert world.stats.tiers[1].hit_tokens == 0
    assert world.scheduler.stats().preemptions == 0
    world.mover.heal(1)
    world.settle()
    assert world.all_free


def test_what_was_not_chosen_at_first_is_not_loaded_later() -> None:
    """It has no blocks: the second half takes longer from the disk than to compute, its end does
    not.
    """
    world = TierWorld(windows=(None, 24), ram_slots=64, num_blocks=128, max_model_len=1024)
    tokens = prompt(6 * CHUNK * BLOCK + 8)
    world.keep(tokens, max_tokens=1)
    assert world.index is not None
    assert world.kv.hasher is not None
    digests = world.kv.hasher.digests(make_request(0, tokens).prompt, [], b"")
    world.index.remove(digests[2 * CHUNK :])
    world.rates.loaded(1, CHUNK * 4 * BLOCK, 250.0)
    assert world.finish(make_request(2, tokens, max_tokens=1)) == 4 * CHUNK * BLOCK + 8
    assert len([load for load in world.asked(TransferKind.LOAD) if load.tier == RAM]) == 1


def test_a_lost_load_waits_in_front_of_later_arrivals() -> None:
    world = TierWorld(windows=(None, 24), auto=False, max_num_seqs=1)
    world.keep(prompt(200))
    world.begin_loads(make_request(2, prompt(200), max_tokens=1))
    world.add(make_request(3, prompt(60, seed=3), max_tokens=1))
    world.mover.stall(1)
    ended: list[int] = []
    while world.scheduler.has_requests():
        world.step()
        ended += [at for at in (2, 3) if world.endings[at].finish and at not in ended]
    assert ended == [2, 3]
    world.mover.heal(1)
    world.settle()


@pytest.mark.parametrize("windows", WINDOWS)
def test_preemption_offloads_what_all_groups_hold(windows: Windows) -> None:
    world = TierWorld(windows=windows, named=0, ram_slots=64, num_blocks=9, max_num_seqs=3)
    requests = [
        make_request(at, prompt(60, seed=at), max_tokens=60, ignore_eos=True) for at in (1, 2, 3)
    ]
    for request in requests:
        world.add(request)
    world.run()
    for request in requests:
        world.check_output(request)
    if None in windows:
        stats = world.scheduler.stats()
        assert stats.preemptions >= 1
        assert world.stats.tiers[RAM].loaded_bytes > 0
        assert world.executor.computed < 3 * 120 + BLOCK * 2 * stats.preemptions


def test_a_tier_that_was_slow_is_measured_into_the_blocks_of_one_group() -> None:
    world = TierWorld(windows=(None, 24))
    world.finish(make_request(1, prompt(140)))
    world.settle()
    world.rates.loaded(1, 1, 1e9)
    world.forget_pool()
    assert world.finish(make_request(2, prompt(140), max_tokens=1)) == 140
    (probe,) = world.asked(TransferKind.LOAD)
    assert sum(block != NO_BLOCK for block in probe.blocks) * 2 == len(probe.blocks)
    world.settle()
    assert world.all_free
