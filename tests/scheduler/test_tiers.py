"""Loads from tiers never change the output: hits, parts of hits, losses, stalls, cancellation."""

from __future__ import annotations

import pytest

from penstock.core import FinishReason, Request
from penstock.core.transfer import RAM, TransferKind
from penstock.kv.tiers import PrefixLoad
from penstock.kv.tiers.load import IN_FLIGHT
from tests.fakes.executor import hash_root
from tests.scheduler.harness import IDENTITY, make_request
from tests.scheduler.tier_world import BLOCK, CHUNK, TierWorld, prompt


@pytest.mark.parametrize(("named", "ram_slots"), [(1, 0), (0, 64), (2, 64), (1, 5)])
@pytest.mark.parametrize("length", [15, 16, 17, 63, 64, 65, 100, 128, 130])
def test_a_prompt_that_was_computed_once_is_loaded(named: int, ram_slots: int, length: int) -> None:
    world = TierWorld(named=named, ram_slots=ram_slots)
    world.keep(prompt(length), ignore_eos=True)
    computed = world.finish(make_request(2, prompt(length), ignore_eos=True))
    blocks = length // BLOCK
    kept = min(blocks * BLOCK, length - 1)
    row = world.endings[2].rows[0]
    if named or ram_slots >= 64:
        assert row.cached_tokens == kept
        assert computed == length - kept + 3, "the rest of the prompt and three tokens more"
    assert world.stats.decisions.load + world.stats.decisions.both == (blocks > 0)


def test_only_what_no_tier_has_is_computed() -> None:
    world = TierWorld()
    shared = prompt(130)
    world.keep(shared)
    computed = world.finish(make_request(2, shared[:100] + prompt(60, seed=1), max_tokens=1))
    assert computed == 160 - 64, "the first chunk was shared, the next in part only"


def test_a_shorter_end_of_a_chunk_is_found_behind_full_ones() -> None:
    world = TierWorld()
    shared = prompt(64 + 40)
    world.keep(shared, max_tokens=1)
    computed = world.finish(make_request(2, shared + prompt(100, seed=2), max_tokens=1))
    assert computed == 204 - 96, "a chunk and two blocks of the next were kept"


def test_a_shorter_end_is_found_behind_what_the_pool_has() -> None:
    world = TierWorld()
    shared = prompt(128 + 40)
    world.finish(make_request(1, shared, max_tokens=1))
    world.settle()
    world.forget_names(shared, 4)
    computed = world.finish(make_request(2, shared + prompt(60, seed=2), max_tokens=1))
    assert computed == 228 - 160, "a chunk of the pool, a chunk and two blocks of the tier"


def test_a_chunk_is_asked_for_where_the_pool_has_only_its_beginning() -> None:
    world = TierWorld()
    world.finish(make_request(1, prompt(128), max_tokens=1))
    world.settle()
    world.forget_names(prompt(128), 3)
    assert world.finish(make_request(2, prompt(129), max_tokens=1)) == 1


def test_salts_share_nothing() -> None:
    world = TierWorld(ram_slots=64)
    world.keep(prompt(100), cache_salt=b"one")
    assert world.finish(make_request(2, prompt(100), max_tokens=1, cache_salt=b"two")) == 100


def test_a_salt_is_forgotten_in_all_tiers_and_the_others_are_not() -> None:
    world = TierWorld(named=2, ram_slots=64)
    for salt in (b"one", b"two"):
        world.keep(prompt(100), cache_salt=salt)
    group = hash_root(IDENTITY, b"", b"one")[:4]
    assert world.tiers.write_behind.clear(group) == 6, "blocks in RAM"
    world.settle()
    assert all(
        tier and not any(name[0].startswith(group) for name in tier) for tier in world.mover.tiers
    )
    assert world.finish(make_request(2, prompt(100), max_tokens=1, cache_salt=b"one")) == 100
    assert world.finish(make_request(3, prompt(100), max_tokens=1, cache_salt=b"two")) == 4


def test_a_store_of_a_chunk_names_its_parent() -> None:
    world = TierWorld()
    world.keep(prompt(64 + 64 + 16), max_tokens=1)
    first, second, tail = world.asked(TransferKind.STORE)
    assert [each.parent for each in (first, second, tail)] == [b"", first.keys, second.keys]


@pytest.mark.parametrize("how", ["lost", "error"])
def test_what_cannot_be_loaded_is_computed(how: str) -> None:
    world = TierWorld(auto=False)
    world.keep(prompt(140))
    request = make_request(2, prompt(140), max_tokens=5)
    world.add(request)
    while world.scheduler.has_requests():
        world.step()
        for each in world.mover.waiting:
            if each.kind is not TransferKind.LOAD:
                world.mover.complete(each.id)
            elif how == "error":
                world.mover.fail(each.id, "the disk is gone")
            else:
                world.mover.tiers[0].clear()
                world.mover.complete(each.id)
    world.check_output(request)
    stats = world.stats.tiers[1]
    assert (stats.errors if how == "error" else stats.misses) >= 1
    world.settle()
    world.scheduler.check()


def test_a_tier_that_stalls_is_not_waited_for() -> None:
    world = TierWorld()
    world.keep(prompt(140))
    world.mover.stall(1)
    world.finish(make_request(2, prompt(140)))
    assert world.tiers.busy, "the probe is still open"
    world.mover.heal(1)
    world.settle()
    world.scheduler.check()


def test_a_tier_that_was_slow_is_loaded_from_again_once_it_is_fast() -> None:
    """While it seems slow everything is computed, and no request awaits the loads that measure."""
    world = TierWorld()
    world.finish(make_request(1, prompt(140)))
    world.settle()
    world.rates.loaded(1, 1, 1e9)
    tried = 0
    for number in range(2, 100):
        world.forget_pool()
        before = len(world.asked(TransferKind.LOAD))
        computed = world.finish(make_request(number, prompt(140), max_tokens=1))
        loads = len(world.asked(TransferKind.LOAD)) - before
        if computed == 140 - 128:
            break
        assert loads <= 1
        tried += loads
        world.settle()
        world.now += 100
    else:
        raise AssertionError("never again")
    assert tried > 1
    assert world.pool.available == world.pool.num_blocks


@pytest.mark.parametrize("chunks", [2, IN_FLIGHT, IN_FLIGHT + 3])
def test_a_load_that_stalls_is_left_to_itself(chunks: int) -> None:
    world = TierWorld(auto=False, num_blocks=128, max_model_len=1024)
    tokens = prompt(chunks * CHUNK * BLOCK + 12)
    world.keep(tokens)
    request = make_request(2, tokens)
    world.begin_loads(request)
    world.mover.stall(1)
    world.run()
    world.check_output(request)
    assert world.stats.tiers[1].errors
    held = {block for _, table in world.tiers.tables() for block in table}
    assert held, "the blocks of the stalled load have no other owner"
    world.mover.heal(1)
    world.settle()
    assert world.pool.available == world.pool.num_blocks


def test_no_request_waits_behind_the_stalled_load_of_another() -> None:
    world = TierWorld(auto=False, num_blocks=256, max_model_len=1024)
    prompts = [prompt(IN_FLIGHT * CHUNK * BLOCK + 12, seed=at) for at in (1, 2)]
    for tokens in prompts:
        world.keep(tokens)
    requests = [make_request(2 + at, tokens) for at, tokens in enumerate(prompts)]
    for request in requests:
        world.add(request)
    world.step()
    world.mover.settle()
    world.mover.stall(1)
    world.step()
    assert len(world.asked(TransferKind.LOAD)) == IN_FLIGHT, (
        "those of the first, and none of the second"
    )
    world.run()
    for request in requests:
        world.check_output(request)
    world.mover.heal(1)
    world.settle()
    assert world.pool.available == world.pool.num_blocks


@pytest.mark.parametrize("stalls", [False, True])
def test_a_tier_that_is_faster_than_it_seemed_is_awaited(stalls: bool) -> None:
    """Its first load says so, whether it had seemed slow or had stopped for a while."""
    # A chunk that is slow to load takes as long as its computation.
    bandwidth = None if stalls else 2.0
    world = TierWorld(
        auto=False, bandwidth=bandwidth, budget=16, num_blocks=128, max_model_len=1024
    )
    tokens = prompt(10 * CHUNK * BLOCK + 8)
    world.keep(tokens, max_tokens=1)
    before = world.executor.computed
    request = make_request(2, tokens, max_tokens=1)
    world.begin_loads(request)
    if stalls:
        world.mover.stall(1)
        while not world.stats.tiers[1].errors:
            world.step()
        world.mover.heal(1)
    while world.scheduler.has_requests():
        world.mover.settle()
        world.step()
    world.check_output(request)
    stalled = IN_FLIGHT if stalls else 0
    assert world.executor.computed - before <= (1 + stalled) * CHUNK * BLOCK + 8


def test_a_cancelled_request_leaves_its_loads_behind() -> None:
    world = TierWorld(auto=False)
    world.keep(prompt(140))
    world.begin_loads(make_request(2, prompt(140)))
    misses = world.stats.tiers[1].misses
    world.scheduler.cancel(2)
    world.collect()
    assert world.endings[2].finish is FinishReason.CANCELLED
    world.scheduler.check()
    assert not world.mover.waiting, "what had not begun is cancelled"
    assert world.pool.available < world.pool.num_blocks
    world.settle()
    assert world.pool.available == world.pool.num_blocks
    assert world.stats.tiers[1].misses == misses, "what was cancelled was not missing"


def test_slow_loads_come_from_the_end_while_the_beginning_is_computed() -> None:
    # A chunk takes about twice as long as its computation.
    world = TierWorld(auto=False, bandwidth=2.0, budget=16, max_num_seqs=4)
    world.keep(prompt(256 - 8), max_tokens=1)
    before = world.executor.computed
    world.begin_loads(make_request(2, prompt(256 - 8), max_tokens=1))
    assert world.executor.computed == before + 16, "and something is computed meanwhile"
    world.mover.settle()
    world.run()
    assert world.stats.decisions.both == 1
    assert 64 <= world.executor.computed - before < 256 - 8


def test_nothing_is_loaded_that_is_computed_sooner() -> None:
    world = TierWorld(bandwidth=1e-3)
    world.keep(prompt(140), max_tokens=1)
    assert world.finish(make_request(2, prompt(140), max_tokens=1)) == 140
    assert world.stats.decisions.compute == 1


@pytest.mark.parametrize("closed", [False, True])
def test_preemption_offloads_to_ram(closed: bool) -> None:
    """Also where RAM takes nothing else at present, because what it has is worth more."""
    world = TierWorld(named=0, ram_slots=64, num_blocks=10, max_num_seqs=2)
    assert world.index is not None
    world.index.closed = closed
    requests = [
        make_request(at, prompt(60, seed=at), max_tokens=60, ignore_eos=True) for at in (1, 2)
    ]
    for request in requests:
        world.add(request)
    world.run()
    stats = world.scheduler.stats()
    assert stats.preemptions >= 1
    for request in requests:
        world.check_output(request)
    assert world.stats.tiers[RAM].loaded_bytes > 0
    assert world.executor.computed < 240 + BLOCK * 2 * stats.preemptions, (
        "at most a block is computed again"
    )


def test_a_tier_that_does_not_answer_is_waited_for_once() -> None:
    """The second prompt waits as long as an answer is worth to it, which is less than the first
    waited.
    """
    world = TierWorld(auto=False, per_token=1e-3)
    world.mover.stall(1)
    waited = []
    for request_id in (1, 2):
        request = make_request(request_id, prompt(40, seed=request_id), max_tokens=1)
        before = world.now
        world.add(request)
        while world.scheduler.has_requests():
            world.step()
        waited.append((world.now - before) / 100)
        world.check_output(request)
    assert waited[0] > 0.1 > waited[1] * 2


def patience(answers: list[float], hits: int = 0, per_token: float = 1e-3) -> float:
    """Seconds that a prompt of 8 blocks awaits a tier whose last answers took so long."""
    world = TierWorld(auto=False, per_token=per_token)
    for seconds in answers:
        world.rates.probed(1, seconds)
    load = PrefixLoad()
    digests = [bytes([at]) * 32 for at in range(8)]
    assert world.tiers.lookup(load, digests, hits) is None
    return load.deadline - world.now / 100


def test_answers_of_a_slow_tier_are_waited_for_as_long_as_they_are_worth() -> None:
    assert patience([]) == pytest.approx(0.1), "it may be fast"
    assert patience([1.0]) == pytest.approx(0.05 * 8 * BLOCK * 1e-3)
    assert patience([1.0, 1.0], hits=6) == pytest.approx(0.05 * 2 * BLOCK * 1e-3), (
        "what the pool has is not computed"
    )
    quick = [1.0, 1.0] + [0.0] * 20
    assert patience(quick) == pytest.approx(0.05), (
        "half of that for one that is quick, in case it has stopped"
    )
    slower = quick + [0.008] * 20
    assert patience(slower, per_token=1.0) == pytest.approx(0.1), "and all of it for a long prompt"
    assert patience(slower, per_token=0.16 / (8 * BLOCK)) == pytest.approx(8 * 0.008, rel=0.01)


def small_pool_with_a_stalled_load() -> tuple[TierWorld, Request]:
    """All blocks but two are the prompt's, and those of its chunks are in a load that stalls."""
    tokens = prompt(IN_FLIGHT * CHUNK * BLOCK + 12)
    world = TierWorld(auto=False, num_blocks=IN_FLIGHT * CHUNK + 3, max_model_len=1024)
    world.keep(tokens)
    request = make_request(2, tokens)
    world.begin_loads(request)
    world.mover.stall(1)
    while not world.tiers.stalled_for:
        world.step()
    return world, request


def test_no_request_waits_for_a_load_that_stalls_in_a_small_pool() -> None:
    """The sequence of the load has no blocks to compute in; others have."""
    world, request = small_pool_with_a_stalled_load()
    others = [make_request(number, prompt(20, seed=number)) for number in (3, 4)]
    for other in others:
        world.add(other)
    for _ in range(200):
        world.step()
    for other in others:
        world.check_output(other)
    assert world.endings[request.id].rows == []
    world.mover.heal(1)
    world.mover.settle()
    world.run()
    world.check_output(request)
    world.settle()
    assert world.all_free


def test_a_tier_that_hangs_for_long_does_not_hold_a_request_for_ever() -> None:
    world, request = small_pool_with_a_stalled_load()
    world.run()
    assert world.endings[request.id].finish is FinishReason.ERROR
    assert "does not answer" in world.endings[request.id].rows[-1].error
    world.mover.heal(1)
    world.settle()
    assert world.all_free


def test_a_sequence_whose_load_stalls_computes_as_soon_as_the_pool_has_blocks() -> None:
    tokens = prompt(CHUNK * BLOCK + 12)
    world = TierWorld(auto=False, num_blocks=2 * CHUNK + 3, max_model_len=1024)
    world.keep(tokens)
    other = make_request(3, prompt(5 * BLOCK, seed=3), max_tokens=12, ignore_eos=True)
    request = make_request(2, tokens)
    world.begin_loads(request)
    world.mover.stall(1)
    world.add(other)
    world.run()
    world.check_output(request)
    world.check_output(other)
    world.mover.heal(1)
    world.settle()
    assert world.all_free
