"""KV events of tiers say what each of them has, whatever happens to its blocks."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from tests.fakes.followed import Followed
from tests.scheduler.harness import make_request
from tests.scheduler.tier_world import CHUNK, TierWorld, prompt


def world(**options: object) -> tuple[TierWorld, Followed]:
    followed = Followed()
    return TierWorld(events=followed, **options), followed  # type: ignore[arg-type]


def digests(made: TierWorld, tokens: list[int]) -> list[bytes]:
    assert made.kv.hasher is not None
    return made.kv.hasher.digests(array("i", tokens), [], b"")


@pytest.mark.parametrize("seed", range(40))
def test_events_say_what_ram_and_disks_have(seed: int) -> None:
    rng = Random(seed)
    made, followed = world(
        named=rng.choice([1, 2]), ram_slots=rng.choice([0, 3, 20]), auto=False, num_blocks=30
    )
    families = [prompt(rng.randrange(20, 200), seed=at) for at in range(3)]
    for number in range(1, 30):
        family = rng.choice(families)
        made.add(make_request(number, family[: rng.randrange(1, len(family) + 1)]))
        for _ in range(rng.randrange(12)):
            made.step()
            if rng.random() < 0.7:
                made.mover.step()
        if rng.random() < 0.3:
            tier = rng.randrange(1, len(made.mover.tiers) + 1)
            for key, _ in list(made.mover.tiers[tier - 1])[: rng.randrange(3)]:
                made.mover.evict(tier, key)
        if made.index is not None:
            assert set(followed.tiers[0]) == made.index.committed
    while made.scheduler.has_requests():
        made.mover.settle()
        made.step()
    made.settle()
    assert len(followed.blocks) == made.kv.named
    assert all(made.pool.find(digest) >= 0 for digest in followed.blocks)
    for tier, chunks in enumerate(made.mover.tiers, start=1):
        # what left since the last answer is not told yet
        left = made.mover.left[tier]
        gone = {left[at : at + 32] for at in range(0, len(left), 32)}
        there = {key: blocks for key, blocks in followed.tiers[tier].items() if key not in gone}
        # a load that was cancelled, or a lookup, leaves some untold until they are read again
        assert {(key, len(blocks)) for key, blocks in there.items()} <= set(chunks)


def test_all_that_is_stored_is_told() -> None:
    made, followed = world(num_blocks=40, ram_slots=20, named=2)
    made.keep(prompt(2 * 16 * CHUNK + 20))
    assert made.index is not None
    assert set(followed.tiers[0]) == made.index.committed != set()
    for tier, chunks in enumerate(made.mover.tiers, start=1):
        told = {(key, len(blocks)) for key, blocks in followed.tiers[tier].items()}
        assert told == set(chunks) != set()


def test_what_a_lookup_found_is_told_when_it_was_read() -> None:
    """Its tokens are known then: a follower came after the engine, or the engine started anew."""
    tokens = prompt(2 * 16 * CHUNK + 20)
    before, _ = world(num_blocks=40)
    before.keep(tokens)
    made, followed = world(num_blocks=40, bandwidth=1e9)
    made.mover.tiers[0].update(before.mover.tiers[0])
    assert made.finish(make_request(1, tokens)) < len(tokens)
    keys = digests(made, tokens)
    assert followed.tiers[1][keys[CHUNK - 1]] == tuple(keys[:CHUNK])
    assert followed.tiers[1][keys[2 * CHUNK - 1]] == tuple(keys[CHUNK : 2 * CHUNK])


def test_what_is_forgotten_is_told() -> None:
    tokens = prompt(2 * 16 * CHUNK)
    made, followed = world(num_blocks=40, ram_slots=20)
    made.keep(tokens)
    assert followed.tiers[0]
    assert followed.tiers[1]
    keys = digests(made, tokens)
    made.tiers.write_behind.remove(keys[: CHUNK + 1])
    assert set(followed.tiers[0]).isdisjoint(keys[: CHUNK + 1])
    assert keys[CHUNK - 1] not in followed.tiers[1]
    assert keys[2 * CHUNK - 1] in followed.tiers[1]
    made.tiers.write_behind.clear()
    assert not followed.in_tiers()
    assert not followed.blocks
