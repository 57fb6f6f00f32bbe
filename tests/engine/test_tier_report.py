"""Reports of the tiers, made of the reports of the ranks' movers; tiers that are refused."""

from __future__ import annotations

import json

import pytest
from penstock.core import TierKind
from penstock.core.transfer import Moved
from penstock.engine.tiers import OpenedTiers, flush
from penstock.kv.pool import BlockPool
from penstock.kv_tiers import Rates, Shape, Stats, TierCache, TierStats

from tests.fakes.executor import FakeExecutor


def opened() -> OpenedTiers:
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
    stats = Stats([TierStats("ram", TierKind.RAM), TierStats("disk:/kv", TierKind.DISK)])
    rates = Rates([TierKind.RAM, TierKind.DISK])
    tiers = TierCache([pool], executor, None, Shape(16, 64, 4, 16), stats, rates, lambda: 0.0)
    return OpenedTiers(tiers, tiers.write_behind, None, rates, stats, 64)


def mover(breaker: str) -> str:
    counters = {"evicted_chunks": 3, "used_bytes": 5}
    return json.dumps(
        {"tiers": [{"name": "disk:/kv", "breaker": breaker, "counters": counters, "damaged": 2}]}
    )


@pytest.mark.parametrize(
    ("breakers", "state"),
    [
        (["closed", "closed"], "serving"),
        (["closed", "open"], "skipped"),
        (["half_open", "closed"], "trying"),
        (["open", "half_open"], "skipped"),
    ],
)
def test_a_tier_is_as_well_as_on_its_worst_rank(breakers: list[str], state: str) -> None:
    report = opened().report([mover(breaker) for breaker in breakers])
    (disk,) = report["tiers"]  # type: ignore[misc]
    assert disk["state"] == state
    counted = [disk[name] for name in ("evicted_chunks", "quarantined_chunks", "used_bytes")]
    assert counted == [6, 4, 5]


def test_without_tiers_there_is_nothing_to_report() -> None:
    report = OpenedTiers().report([])
    assert (report["tiers"], report["miss_curve"], report["lookup_tokens"]) == ([], [], 0)


def test_a_store_without_room_is_no_error() -> None:
    disk = opened().stats.tiers[1]
    budget = "disk:/kv: full: 12 bytes are left of the daily write budget"
    disk.stored(Moved(1, False, error=budget, full=True))
    disk.stored(Moved(2, False, error="disk:/kv: no such device"))
    assert (disk.dropped_stores, disk.errors) == (1, 1)


def test_a_flush_is_over_with_the_last_transfer() -> None:
    found = opened()
    assert found.write_behind is not None
    found.write_behind.clear()
    assert found.tiers.busy
    flush(found.tiers)
    assert not found.tiers.busy
