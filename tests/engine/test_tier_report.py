"""Reports of the tiers, made of the reports of the ranks' movers; tiers that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.core import TierKind
from penstock.core.transfer import Fault, TransferResult
from penstock.engine.tiers import OpenedTiers, flush
from penstock.kv.pool import BlockPool
from penstock.kv.tiers import CircuitBreaker, Rates, Shape, Stats, TierCache, TierStats
from penstock.kv.tiers.breaker import SHORTEST
from tests.fakes.executor import FakeExecutor


def opened(clock: Callable[[], float] = lambda: 0.0) -> OpenedTiers:
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
    breakers = [CircuitBreaker("disk:/kv", clock)]
    shape = Shape(16, 64, 4, 16)
    tiers = TierCache([pool], executor, None, shape, stats, rates, breakers, clock)
    return OpenedTiers(tiers, tiers.write_behind, None, rates, stats, breakers, 64)


def test_a_tier_is_trying_while_its_breaker_is_half_open() -> None:
    now = 0.0
    found = opened(lambda: now)
    states = []
    for event in ("nothing", "a stall", "a pause", "a success"):
        if event == "a stall":
            found.breakers[0].stalled(1, 0.2)
        elif event == "a pause":
            now += SHORTEST
        elif event == "a success":
            found.breakers[0].succeeded(1)
        (disk,) = found.report([])["tiers"]  # type: ignore[misc]
        states.append(disk["state"])
    assert states == ["serving", "skipped", "trying", "serving"]


def test_counters_of_ranks_are_added() -> None:
    counters = {"evicted_chunks": 3, "used_bytes": 5}
    rank = {"name": "disk:/kv", "counters": counters, "damaged": 2}
    report = opened().report([json.dumps({"tiers": [rank]})] * 2)
    (disk,) = report["tiers"]  # type: ignore[misc]
    counted = [disk[name] for name in ("evicted_chunks", "quarantined_chunks", "used_bytes")]
    assert counted == [6, 4, 5]


def test_without_tiers_there_is_nothing_to_report() -> None:
    report = OpenedTiers().report([])
    assert (report["tiers"], report["lookup_tokens"]) == ([], 0)


def test_a_store_without_room_is_no_error() -> None:
    disk = opened().stats.tiers[1]
    budget = "disk:/kv: full: 12 bytes are left of the daily write budget"
    disk.stored(TransferResult(1, False, error=budget, fault=Fault.FULL))
    disk.stored(TransferResult(2, False, error="disk:/kv: no such device", fault=Fault.FAILED))
    assert (disk.dropped_stores, disk.errors) == (1, 1)


def test_a_flush_is_over_with_the_last_transfer() -> None:
    found = opened()
    assert found.write_behind is not None
    found.write_behind.clear()
    assert found.tiers.busy
    flush(found.tiers)
    assert not found.tiers.busy
