"""What the reports of ranks' movers become: the names of states are theirs."""

from __future__ import annotations

import json

import pytest
from penstock.core import TierKind, TierReport, TierState, TierStats
from penstock.core.transfer import Moved
from penstock.engine.report import tier_report
from penstock.engine.tiers import flush
from penstock.kv.pool import BlockPool
from penstock.kv_tiers import NoTiers, Shape, TierCache

from tests.fakes.executor import FakeExecutor


def cache() -> TierCache:
    pool = BlockPool(4)
    executor = FakeExecutor(
        num_blocks=4,
        block_size=16,
        max_num_seqs=1,
        max_batched_tokens=16,
        vocab=10,
        named=1,
        ram_slots=0,
        auto=True,
    )
    stats = [TierStats("ram", TierKind.RAM), TierStats("disk:/kv", TierKind.DISK)]
    return TierCache(pool, executor, None, Shape(16, 64, 4, 16), stats, lambda: 0.0)


def mover(breaker: str) -> str:
    counters = {"evicted_chunks": 3, "used_bytes": 5}
    return json.dumps(
        {"tiers": [{"name": "disk:/kv", "breaker": breaker, "counters": counters, "damaged": 2}]}
    )


@pytest.mark.parametrize(
    ("breakers", "state"),
    [
        (["closed", "closed"], TierState.SERVING),
        (["closed", "open"], TierState.SKIPPED),
        (["half_open", "closed"], TierState.TRYING),
    ],
)
def test_a_tier_is_as_well_as_on_its_worst_rank(breakers: list[str], state: TierState) -> None:
    (disk,) = tier_report(cache(), [mover(breaker) for breaker in breakers]).tiers
    assert disk.state is state
    assert (disk.evicted_chunks, disk.quarantined_chunks, disk.used_bytes) == (6, 4, 5)


def test_without_tiers_there_is_nothing_to_report() -> None:
    assert tier_report(NoTiers(), []) == TierReport()


def test_a_store_without_room_is_no_error() -> None:
    tiers = cache()
    tiers.counts.stored(
        1,
        Moved(
            1, False, error="disk:/kv: full: 12 bytes are left of the daily write budget", full=True
        ),
    )
    tiers.counts.stored(1, Moved(2, False, error="disk:/kv: no such device"))
    disk = tiers.counts.tiers[1]
    assert (disk.dropped_stores, disk.errors) == (1, 1)


def test_a_flush_is_over_with_the_last_transfer() -> None:
    tiers = cache()
    tiers.clear()
    assert tiers.busy
    flush(tiers)
    assert not tiers.busy
