"""Which pieces of a prefix are found where, and which of them are loaded: small cases by hand, and a search
that shows that nothing which the rule leaves out would have been there sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from penstock.core import TierKind
from penstock.core.transfer import RAM
from penstock.kv.tiers.choose import choose
from penstock.kv.tiers.pieces import Piece, chunks_to_ask, parts_to_ask, reach
from penstock.kv.tiers.rates import Rates

DIGESTS = [bytes([at]) * 32 for at in range(64)]


def places(pieces: Sequence[Piece]) -> list[tuple[int, int, int]]:
    return [(piece.tier, piece.first, piece.end) for piece in pieces]


def chunk(first: int, blocks: int) -> tuple[bytes, int]:
    return DIGESTS[first + blocks - 1], blocks


def test_ram_first_then_the_first_tier_that_has_a_chunk() -> None:
    named = [{chunk(4, 4)}, {chunk(4, 4), chunk(8, 4)}]
    pieces = reach(DIGESTS[:12], 0, 4, [100, 101, 102, 103], named)
    assert places(pieces) == [(RAM, 0, 4), (1, 4, 8), (2, 8, 12)]
    assert pieces[0].slots == [100, 101, 102, 103]
    assert pieces[1].key == DIGESTS[7]


def test_a_chunk_replaces_what_ram_and_pool_have_of_it() -> None:
    pieces = reach(DIGESTS[:12], 1, 4, [101, 102, 103, 104, 105], [{chunk(4, 4)}])
    assert places(pieces) == [(RAM, 1, 4), (1, 4, 8)]
    assert pieces[0].slots == [101, 102, 103]
    assert places(reach(DIGESTS[:12], 6, 4, [], [{chunk(4, 4)}])) == [(1, 4, 8)]


def test_the_longest_part_of_the_last_chunk() -> None:
    named = [{chunk(0, 4), chunk(4, 1), chunk(4, 3)}]
    assert places(reach(DIGESTS[:8], 0, 4, [], named)) == [(1, 0, 4), (1, 4, 7)]
    assert places(reach(DIGESTS[:6], 0, 4, [], named)) == [(1, 0, 4), (1, 4, 5)]


def test_a_part_that_ends_before_what_is_there_is_of_no_use() -> None:
    assert reach(DIGESTS[:8], 3, 4, [], [{chunk(0, 2)}]) == []


def test_what_is_asked() -> None:
    assert chunks_to_ask(DIGESTS[:10], 5, 4) == [chunk(4, 4), chunk(8, 2), chunk(8, 1)]
    assert parts_to_ask(DIGESTS[:10], 0, 4) == [chunk(0, 3), chunk(0, 2), chunk(0, 1)]
    assert chunks_to_ask(DIGESTS[:8], 0, 4) == [chunk(0, 4), chunk(4, 4)]


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
    assert learned.compute_seconds(10_000, 256) == pytest.approx(256 * (2e-4 + 3e-8 * 10_128), rel=0.05)
    learned.computed(4, 40, 99.0)
    assert learned.compute_seconds(0, 256) < 1.0, "a step of decodes says nothing"


def all_pieces(count: int, blocks: int = 4) -> list[Piece]:
    return [Piece(1, at * blocks, (at + 1) * blocks, key=DIGESTS[at]) for at in range(count)]


def test_fast_tiers_load_all_and_compute_nothing() -> None:
    choice = choose(all_pieces(8), 0, 16, 1000, [0, 0], rates(1e-3, 1e9), 256)
    assert choice.patient
    assert len(choice.pieces) == 8


def test_slow_tiers_load_the_end() -> None:
    # A chunk of 64 tokens takes 0.64 s to compute and 0.4 s to load: both end at about the same time.
    choice = choose(all_pieces(8), 0, 16, 1000, [0, 0], rates(1e-2, 5e3), 16)
    assert not choice.patient
    assert [piece.first for piece in choice.pieces] == [4 * at for at in range(8 - len(choice.pieces), 8)]
    assert 1 <= len(choice.pieces) < 8


def test_what_waits_in_the_queue_counts() -> None:
    free = choose(all_pieces(8), 0, 16, 1000, [0, 0], rates(1e-2, 5e3), 16)
    queued = choose(all_pieces(8), 0, 16, 1000, [0, 20_000], rates(1e-2, 5e3), 16)
    assert len(queued.pieces) < len(free.pieces)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_is_chosen_is_there_before_it_is_computed(seed: int) -> None:
    rng = Random(seed)
    per_token, bandwidth = 10 ** rng.uniform(-4, -1), 10 ** rng.uniform(2, 8)
    known = rates(per_token, bandwidth)
    count = rng.randrange(1, 12)
    backlog = [0, rng.randrange(0, 50_000)]
    choice = choose(all_pieces(count), 0, 16, 1000, backlog, known, 256)
    loaded = backlog[1]
    for piece in reversed(choice.pieces):
        loaded += 4000
        there = known.queue_seconds(1, loaded)
        if not choice.patient:
            assert there <= known.compute_seconds(0, piece.end * 16) * (1 + 1e-9)
    if choice.patient:
        assert known.queue_seconds(1, loaded) <= known.compute_seconds(0, count * 64) * (1 + 1e-9)
    elif len(choice.pieces) < count:
        piece = all_pieces(count)[count - len(choice.pieces) - 1]
        there = max(known.queue_seconds(1, loaded + 4000), known.load_seconds(1, 4000))
        assert there > known.compute_seconds(0, piece.end * 16)
