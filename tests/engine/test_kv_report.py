"""The document of `GET /v1/kv` and of the metrics."""

from __future__ import annotations

import json
from array import array
from typing import Any

from penstock.core import TierKind
from penstock.kv.tiers import CircuitBreaker, Stats, TierStats
from penstock.kv.tiers.stats import Decisions
from tests.fakes.index import FakeIndex


class FullIndex(FakeIndex):
    def stats(self) -> dict[str, Any]:
        return {"used": 3, "pinned": 5, "evictions": 7}


def test_a_report_has_sizes_and_ratios() -> None:
    disk = TierStats("disk:/kv", TierKind.DISK, hits=3, misses=1, hit_tokens=96)
    disk.loads.observe(0.25)
    disk.loads.observe(0.5)
    stats = Stats(
        [TierStats("ram", TierKind.RAM, capacity_bytes=1 << 30), disk],
        lookup_tokens=128,
        decisions=Decisions(load=2, both=1),
    )
    rank = {"name": "disk:/kv", "counters": {"used_bytes": 3}}
    breaker = CircuitBreaker("disk:/kv", lambda: 0.0)
    breaker.stalled(1, 0.2)
    report = stats.report(FullIndex(4), 256, [breaker], [json.dumps({"tiers": [rank]})])
    said = json.loads(json.dumps(report))
    assert (said["lookup_tokens"], said["hit_tokens"], said["hit_ratio"]) == (128, 96, 0.75)
    assert said["decisions"] == {"load": 2, "compute": 0, "both": 1}
    ram, slow = said["tiers"]
    assert (ram["kind"], ram["state"], ram["capacity_bytes"], ram["hit_ratio"]) == (
        "ram",
        "serving",
        1 << 30,
        None,
    )
    assert (ram["used_bytes"], ram["evicted_chunks"]) == (768, 7)
    assert (slow["name"], slow["state"], slow["capacity_bytes"], slow["hit_ratio"]) == (
        "disk:/kv",
        "skipped",
        None,
        0.75,
    )
    assert (slow["loads"]["count"], slow["loads"]["seconds"], slow["used_bytes"]) == (2, 0.75, 3)
    assert sum(slow["loads"]["buckets"]) == 2
    assert said["pinned_blocks"] == 5


def test_durations_fall_into_inclusive_buckets() -> None:
    tier = TierStats("ram", TierKind.RAM)
    for seconds in [0.0, 1e-4, 1.1e-4, 10.0, 11.0]:
        tier.stores.observe(seconds)
    assert tier.stores.buckets == array("Q", [2, 1] + [0] * 13 + [1, 1])
    assert tier.loads.buckets == array("Q", [0] * 17), "histograms share nothing"
