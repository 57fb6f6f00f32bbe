"""Random traffic on tiers: hits, evictions, cancellations, late answers out of order, stalls,
losses of tiers, small pools, with and without windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import FinishReason, Request
from tests.scheduler.harness import RandomDrafter, make_request
from tests.scheduler.tier_world import TierWorld, prompt

Windows = Sequence[int | None]
WINDOWS: list[Windows] = [(None, 24), (40, None), (20,), (16, None, 50)]


@pytest.mark.parametrize("seed", range(30))
def test_random_traffic(seed: int) -> None:
    check_random_traffic(Random(seed), (None,))


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=True), st.sampled_from(WINDOWS))
def test_random_traffic_of_groups_with_windows(draw: Random, windows: Windows) -> None:
    check_random_traffic(draw, windows)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [(None,), *WINDOWS])
def test_thousands_of_worlds(windows: Windows) -> None:
    for seed in range(1000):
        check_random_traffic(Random(seed), windows)


def check_random_traffic(rng: Random, windows: Windows) -> None:
    world = TierWorld(
        windows=windows,
        named=rng.choice([0, 1, 2]),
        ram_slots=rng.choice([3, 20]) if rng.random() < 0.7 else 0,
        auto=False,
        num_blocks=rng.choice([18, 40]),
        budget=rng.choice([8, 32, 100]),
        in_flight=rng.choice([1, 2]),
        per_token=rng.choice([1e-12, 1e-9, 1.0, 1.0, 1.0]),
        bandwidth=rng.choice([None, None, 1e2, 1e9]),
        drafter=RandomDrafter(rng, windows=windows) if rng.random() < 0.3 else None,
    )
    families = [prompt(rng.randrange(20, 200), seed=at) for at in range(3)]
    if world.index is not None:
        world.index.closed = rng.random() < 0.3
    requests: dict[int, Request] = {}
    for request_id in range(1, 25):
        family = rng.choice(families)
        tokens = family[: rng.randrange(1, len(family) + 1)] + prompt(
            rng.randrange(0, 20), seed=request_id
        )
        salt = rng.choice([b"", b"", b"salt"])
        request = make_request(request_id, tokens, max_tokens=rng.randrange(1, 30), cache_salt=salt)
        requests[request_id] = request
        world.add(request)
        for _ in range(rng.randrange(0, 12)):
            _disturb(world, rng, request_id)
            world.step()
    for _ in range(4000):
        if not world.scheduler.has_requests() and not world.in_flight and not world.tiers.busy:
            break
        _disturb(world, rng, 0)
        world.step()
    else:
        raise AssertionError("it does not end")
    for request_id, request in requests.items():
        if world.endings[request_id].finish is not FinishReason.CANCELLED:
            world.check_output(request)
    assert world.all_free
    if world.index is not None:
        assert not +world.index.held


def _disturb(world: TierWorld, rng: Random, last: int) -> None:
    """Whatever may happen between two steps."""
    waiting = [each for each in world.mover.waiting if each.tier not in world.mover.stalled]
    if waiting and rng.random() < 0.7:
        each = rng.choice(waiting)
        if rng.random() < 0.1:
            world.mover.fail(each.id)
        else:
            world.mover.complete(each.id)
    if last and rng.random() < 0.05:
        world.scheduler.cancel(rng.randrange(1, last + 1))
    if rng.random() < 0.04:
        world.forget_pool()
    for tier in world.mover.tiers:
        if rng.random() < 0.02:
            tier.clear()
    for number in range(1, len(world.mover.tiers) + 1):
        if rng.random() < 0.02:
            world.mover.stall(number)
        elif rng.random() < 0.05:
            world.mover.heal(number)
