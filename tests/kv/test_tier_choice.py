"""Which pieces of a prefix are found where, and which of them are loaded: small cases by hand, and
a search that shows that nothing which the rule leaves out would have been there sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from penstock.core import TierKind
from penstock.core.transfer import RAM
from penstock.kv.tiers import Rates, Shape
from penstock.kv.tiers.load import IN_FLIGHT
from penstock.kv.tiers.plan import (
    LoadSegment,
    chunks_to_probe,
    cover,
    plan_load,
    plan_whole,
    tails_to_probe,
)

WORSE = 2.0
"""Times as long as the best of all choices: pieces of several tiers by turns are chosen run by run.
"""

DIGESTS = [bytes([at]) * 32 for at in range(64)]


def places(pieces: Sequence[LoadSegment]) -> list[tuple[int, int, int]]:
    return [(piece.tier, piece.first, piece.end) for piece in pieces]


def chunk(first: int, blocks: int) -> tuple[bytes, int]:
    return DIGESTS[first + blocks - 1], blocks


def test_ram_first_then_the_first_tier_that_has_a_chunk() -> None:
    named = [{chunk(4, 4)}, {chunk(4, 4), chunk(8, 4)}]
    pieces = cover(DIGESTS[:12], 0, 4, [100, 101, 102, 103], named)
    assert places(pieces) == [(RAM, 0, 4), (1, 4, 8), (2, 8, 12)]
    assert pieces[0].slots == [100, 101, 102, 103]
    assert pieces[1].key == DIGESTS[7]


def test_a_chunk_replaces_what_ram_and_pool_have_of_it() -> None:
    pieces = cover(DIGESTS[:12], 1, 4, [101, 102, 103, 104, 105], [{chunk(4, 4)}])
    assert places(pieces) == [(RAM, 1, 4), (1, 4, 8)]
    assert pieces[0].slots == [101, 102, 103]
    assert places(cover(DIGESTS[:12], 6, 4, [], [{chunk(4, 4)}])) == [(1, 4, 8)]


def test_the_longest_part_of_the_last_chunk() -> None:
    named = [{chunk(0, 4), chunk(4, 1), chunk(4, 3)}]
    assert places(cover(DIGESTS[:8], 0, 4, [], named)) == [(1, 0, 4), (1, 4, 7)]
    assert places(cover(DIGESTS[:6], 0, 4, [], named)) == [(1, 0, 4), (1, 4, 5)]


def test_a_part_that_ends_before_what_is_there_is_of_no_use() -> None:
    assert cover(DIGESTS[:8], 3, 4, [], [{chunk(0, 2)}]) == []


def test_what_is_asked() -> None:
    assert chunks_to_probe(DIGESTS[:10], 5, 4) == [chunk(4, 4), chunk(8, 2), chunk(8, 1)]
    assert tails_to_probe(DIGESTS[:10], 0, 4) == [chunk(0, 3), chunk(0, 2), chunk(0, 1)]
    assert chunks_to_probe(DIGESTS[:8], 0, 4) == [chunk(0, 4), chunk(4, 4)]


def rates(per_token: float, bandwidth: float) -> Rates:
    made = Rates([TierKind.RAM, TierKind.DISK], per_token)
    made.loaded(1, 1, 1.0)
    for _ in range(500):
        made.loaded(1, 1000, 1000 / bandwidth)
    return made


def test_bandwidth_is_learned() -> None:
    assert rates(1.0, 3e6).load_seconds(1, 3_000_000) == pytest.approx(1.0, rel=0.01)


def test_the_first_load_replaces_the_guess() -> None:
    learned = Rates([TierKind.RAM, TierKind.REMOTE])
    learned.loaded(1, 1000, 1.0)
    assert learned.load_seconds(1, 1000) == pytest.approx(1.0)
    learned.loaded(1, 1000, 3.0)
    assert learned.load_seconds(1, 1000) == pytest.approx(2.0), "the mean of both"


def test_stores_tell_of_a_slow_link_until_something_is_loaded() -> None:
    learned = Rates([TierKind.RAM, TierKind.REMOTE, TierKind.DISK])
    for _ in range(20):
        learned.stored(1, 1000, 1.0)
        learned.stored(2, 1000, 1.0)
    assert learned.load_seconds(1, 1000) == pytest.approx(1.0, rel=0.01)
    assert learned.load_seconds(2, 1000) < 1e-5, "what a disk writes at says nothing of reading"
    for _ in range(100):
        learned.stored(1, 1 << 30, 1e-3)
    assert learned.load_seconds(1, 1000) > 1e-6, "no link is faster than the guess"
    learned.loaded(1, 1000, 0.5)
    learned.stored(1, 1000, 9.0)
    assert learned.load_seconds(1, 1000) == pytest.approx(0.5)


def test_probe_times_follow_the_last_answers() -> None:
    learned = Rates([TierKind.RAM, TierKind.REMOTE, TierKind.DISK])
    assert learned.probe_seconds == 0.0
    learned.probed(1, 0.2)
    learned.probed(2, 0.001)
    assert learned.probe_seconds == pytest.approx(0.1)
    for _ in range(10):
        learned.probed(1, 0.0)
    assert learned.probe_seconds < 0.001


def test_compute_time_is_learned_with_its_growth() -> None:
    learned = Rates([TierKind.RAM])
    rng = Random(1)
    for _ in range(300):
        tokens, start = rng.randrange(64, 512), rng.randrange(0, 20_000)
        positions = tokens * (start + tokens // 2)
        learned.computed(tokens, positions, 2e-4 * tokens + 3e-8 * positions)
    assert learned.compute_seconds(0, 256) == pytest.approx(2e-4 * 256, rel=0.05)
    assert learned.compute_seconds(10_000, 256) == pytest.approx(
        256 * (2e-4 + 3e-8 * 10_128), rel=0.05
    )
    learned.computed(4, 40, 99.0)
    assert learned.compute_seconds(0, 256) < 1.0, "a step of decodes says nothing"


def shape(step_tokens: int) -> Shape:
    return Shape(16, 1000, 4, step_tokens)


def all_pieces(count: int, blocks: int = 4) -> list[LoadSegment]:
    return [LoadSegment(1, at * blocks, (at + 1) * blocks, key=DIGESTS[at]) for at in range(count)]


def test_fast_tiers_load_all_and_compute_nothing() -> None:
    choice = plan_load(all_pieces(8), [0, 0], rates(1e-3, 1e9), shape(256))
    assert (len(choice.awaited), len(choice.meanwhile)) == (8, 0)


def test_slow_tiers_load_the_end() -> None:
    # A chunk of 64 tokens takes 0.64 s to compute and 0.4 s to load: both end at about the same
    # time.
    choice = plan_load(all_pieces(8), [0, 0], rates(1e-2, 5e3), shape(16))
    assert not choice.awaited
    chosen = choice.meanwhile
    assert [piece.first for piece in chosen] == [4 * at for at in range(8 - len(chosen), 8)]
    assert 1 <= len(chosen) < 8


def test_what_waits_in_the_queue_counts() -> None:
    free = plan_load(all_pieces(8), [0, 0], rates(1e-2, 5e3), shape(16))
    queued = plan_load(all_pieces(8), [0, 20_000], rates(1e-2, 5e3), shape(16))
    assert len(queued.meanwhile) < len(free.meanwhile)


def test_a_fast_tier_in_front_of_a_slow_one_is_awaited_first() -> None:
    pieces = all_pieces(8)
    for piece in pieces[:3]:
        piece.tier = RAM
    choice = plan_load(pieces, [0, 0], rates(1e-2, 5e3), shape(16))
    assert list(choice.awaited) == pieces[:3]
    assert 1 <= len(choice.meanwhile) < 5
    assert choice.meanwhile[-1] is pieces[-1]


def test_nothing_is_expected_of_a_tier_that_is_skipped() -> None:
    known, pieces = rates(1e-3, 1e9), all_pieces(8)
    pieces[0].tier = pieces[5].tier = RAM
    choice = plan_load(pieces, [0, 0], known, shape(256), skipped={1})
    assert list(choice.awaited) == [pieces[0]]
    assert list(choice.meanwhile) == [pieces[5]]
    assert len(plan_load(pieces, [0, 0], known, shape(256)).awaited) == 8


def seconds(
    pieces: Sequence[LoadSegment],
    awaited: Sequence[LoadSegment],
    loaded: Sequence[LoadSegment],
    backlog: list[int],
    known: Rates,
) -> float:
    """Until all is there: each tier loads what is awaited and then the rest from the end, some at
    once, and what is not loaded is computed, or is when computing comes before its load has begun.
    """
    sizes, begin, there = list(backlog), {}, {}
    under_way: dict[int, list[float]] = {}
    for piece in [*awaited, *reversed([piece for piece in loaded if piece not in awaited])]:
        before = under_way.setdefault(piece.tier, [0.0] * IN_FLIGHT)
        begin[piece] = before[-IN_FLIGHT]
        sizes[piece.tier] += piece.blocks * 1000
        there[piece] = known.queue_seconds(piece.tier, sizes[piece.tier])
        before.append(there[piece])
    now = 0.0
    for piece in pieces:
        if piece in awaited or (piece in loaded and begin[piece] <= now):
            now = max(now, there[piece])
        else:
            now += known.compute_seconds(piece.first * 16, piece.blocks * 16)
    return now


@pytest.mark.parametrize("seed", range(400))
def test_no_other_choice_is_much_better(seed: int) -> None:
    """All choices there are, played through for up to eight pieces of three tiers, some with a
    queue. What is chosen takes no longer than computing, and hardly longer than the best.
    """
    rng = Random(seed)
    known = Rates([TierKind.RAM, TierKind.DISK, TierKind.REMOTE], 10 ** rng.uniform(-4, -1))
    for tier in (1, 2):
        known.loaded(tier, 1000, 1000 / 10 ** rng.uniform(3, 9))
    pieces = all_pieces(rng.randrange(1, 9))
    for piece in pieces:
        piece.tier = rng.choice([RAM, 1, 1, 2])
    backlog = [0, rng.choice([0, rng.randrange(50_000)]), 0]
    step = rng.choice([16, 64, 256])
    choice = plan_load(pieces, backlog, known, shape(step))
    chosen = [*choice.awaited, *choice.meanwhile]
    took = seconds(pieces, choice.awaited, chosen, backlog, known)
    assert took <= known.compute_seconds(0, len(pieces) * 64) * (1 + 1e-9)
    every = [
        [piece for at, piece in enumerate(pieces) if subset >> at & 1]
        for subset in range(1 << len(pieces))
    ]
    best = min(
        seconds(pieces, loaded[:count], loaded, backlog, known)
        for loaded in every
        for count in range(len(loaded) + 1)
    )
    assert took <= WORSE * best + known.compute_seconds(0, min(step, len(pieces) * 64)) / 2


@pytest.mark.parametrize("seed", range(100))
def test_a_load_that_is_all_or_nothing_is_the_soonest_of_all(seed: int) -> None:
    """Every leading run of segments, each tier with its queue, and the windows at the end."""
    rng = Random(seed)
    known = Rates([TierKind.RAM, TierKind.DISK, TierKind.REMOTE], 10 ** rng.uniform(-4, -1))
    for tier in (1, 2):
        known.loaded(tier, 1000, 1000 / 10 ** rng.uniform(3, 9))
    pieces = all_pieces(rng.randrange(1, 9))
    for piece in pieces:
        piece.tier = rng.choice([RAM, 1, 1, 2])
    backlog, windows = [0, rng.choice([0, rng.randrange(50_000)]), 0], rng.choice([0, 7000])

    def took(count: int) -> float:
        sizes = {piece.tier: backlog[piece.tier] for piece in pieces[:count]}
        for piece in pieces[:count]:
            sizes[piece.tier] += piece.blocks * 1000
        if count:
            sizes[pieces[count - 1].tier] += windows
        loads = [known.queue_seconds(tier, size) for tier, size in sizes.items()]
        rest = known.compute_seconds(64 * count, 64 * (len(pieces) - count))
        return max(loads, default=0.0) + rest

    choice = plan_whole(pieces, backlog, known, replace(shape(64), window_bytes=windows))
    assert not choice.meanwhile
    assert list(choice.awaited) == pieces[: len(choice.awaited)]
    best = min(map(took, range(len(pieces) + 1)))
    assert took(len(choice.awaited)) == pytest.approx(best)
    avoided = plan_whole(pieces, backlog, known, shape(64), skipped={1}).awaited
    assert all(piece.tier != 1 for piece in avoided)


def test_nothing_is_chosen_of_nothing() -> None:
    assert not plan_whole([], [0, 0], rates(1e-3, 1e9), shape(64)).awaited
