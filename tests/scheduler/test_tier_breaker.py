"""Use of the circuit breaker by lookup, loads and stores, on tiers without bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.core.transfer import Fault, TransferKind
from penstock.kv.tiers.breaker import FAILURES, LONGEST, BreakerState
from tests.scheduler.harness import make_request
from tests.scheduler.tier_world import TierWorld, prompt


def open_breaker(world: TierWorld) -> None:
    """Failures in a row."""
    for transfer in range(-FAILURES, 0):
        world.breakers[0].began(transfer)
        world.breakers[0].failed(transfer, "connection refused")


def test_nothing_of_a_tier_begins_while_its_breaker_is_open() -> None:
    world = TierWorld()
    world.keep(prompt(140), max_tokens=1)
    open_breaker(world)
    asked, dropped = len(world.mover.asked), world.stats.tiers[1].dropped_stores
    assert world.finish(make_request(2, prompt(140), max_tokens=1)) == 140
    assert world.finish(make_request(3, prompt(140, seed=1), max_tokens=1)) == 140
    world.step()
    assert world.breakers[0].state is BreakerState.OPEN
    assert len(world.mover.asked) == asked, "no probe, no load, no store"
    assert world.stats.tiers[1].dropped_stores == dropped + 2, "two chunks"


@pytest.mark.parametrize("chance", ["a store", "a load"])
def test_a_tier_is_used_again_after_a_trial(chance: str) -> None:
    """That of a store, or of a load that no request awaits."""
    world = TierWorld()
    world.keep(prompt(140), max_tokens=1)
    open_breaker(world)
    world.now += 100 * LONGEST
    seed = 0 if chance == "a load" else 1
    assert world.finish(make_request(2, prompt(140, seed=seed), max_tokens=1)) == 140
    world.step()
    assert world.breakers[0].state is BreakerState.CLOSED
    kind = TransferKind.LOAD if chance == "a load" else TransferKind.STORE
    assert world.asked(kind)
    world.settle()
    world.forget_pool()
    assert world.finish(make_request(3, prompt(140), max_tokens=1)) == 140 - 128
    assert world.pool.available == world.pool.num_blocks


def test_a_trial_that_stalls_opens_the_breaker_again_and_for_longer() -> None:
    world = TierWorld(auto=False)
    world.keep(prompt(140), max_tokens=1)
    open_breaker(world)
    world.mover.stall(1)
    openings: list[float] = []
    state = BreakerState.OPEN
    for request_id in range(2, 2000):
        world.add(make_request(request_id, prompt(140, seed=request_id), max_tokens=1))
        world.run()
        now_state = world.breakers[0].state
        if now_state is not state and now_state is BreakerState.OPEN:
            openings.append(world.now)
        state = now_state
        if len(openings) == 4:
            break
    first, second, third = (later - earlier for earlier, later in pairwise(openings))
    assert third - second > second - first > 0, "pauses that double, and stalls of one length"
    world.mover.heal(1)
    world.settle()


def test_a_store_that_hangs_gives_its_blocks_back() -> None:
    """Otherwise a small pool has no room for the next prompt while the tier hangs."""
    world = TierWorld(auto=False, num_blocks=10)
    world.mover.stall(1)
    for request_id in (1, 2):
        request = make_request(request_id, prompt(140, seed=request_id), max_tokens=1)
        world.add(request)
        world.run()
        world.check_output(request)
    assert world.asked(TransferKind.STORE)
    assert world.breakers[0].state is not BreakerState.CLOSED
    world.mover.heal(1)
    world.settle()
    assert world.all_free


def test_stores_that_fail_open_the_breaker() -> None:
    world = TierWorld(auto=False)
    world.add(make_request(1, prompt(250), max_tokens=1, ignore_eos=True))
    for request_id in range(2, 6):
        world.add(make_request(request_id, prompt(250, seed=request_id), max_tokens=1))
    while world.breakers[0].state is BreakerState.CLOSED:
        world.step()
        for each in world.mover.waiting:
            if each.kind is TransferKind.STORE:
                world.mover.fail(each.id, "read-only file system")
            else:
                world.mover.complete(each.id)
    assert world.stats.tiers[1].errors == FAILURES


def test_the_log_mentions_the_first_quarantine_of_a_tier(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = TierWorld(auto=False)
    world.keep(prompt(250), max_tokens=1)
    world.add(make_request(2, prompt(250), max_tokens=1))
    while world.scheduler.has_requests():
        world.step()
        for each in world.mover.waiting:
            if each.kind is TransferKind.LOAD:
                error = f"disk:0: damaged: part {each.id}"
                world.mover.fail(each.id, error, Fault.DAMAGED)
            else:
                world.mover.complete(each.id)
    assert world.stats.tiers[1].errors > 1
    (message,) = caplog.messages
    assert "disk:0: damaged: part" in message
    assert world.breakers[0].state is BreakerState.CLOSED
