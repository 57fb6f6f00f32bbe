"""What `GET /v1/kv` says."""

from __future__ import annotations

import json
from array import array

from penstock.core import Decisions, TierKind, TierReport, TierState, TierStats
from penstock.engine.report import report_fields


def test_a_report_has_sizes_ratios_and_the_curve() -> None:
    disk = TierStats(
        "disk:/kv", TierKind.DISK, TierState.SKIPPED, used_bytes=3, hits=3, misses=1, hit_tokens=96
    )
    disk.load.observe(0.25)
    disk.load.observe(0.5)
    report = TierReport(
        [TierStats("ram", TierKind.RAM, capacity_bytes=1 << 30), disk],
        lookup_tokens=128,
        decisions=Decisions(load=2, both=1),
        pinned_blocks=5,
        miss_curve=[(1024, 0.5)],
    )
    said = json.loads(json.dumps(report_fields(report)))
    assert (said["lookup_tokens"], said["hit_tokens"], said["hit_ratio"]) == (128, 96, 0.75)
    assert said["decisions"] == {"load": 2, "compute": 0, "both": 1}
    ram, slow = said["tiers"]
    assert (ram["kind"], ram["state"], ram["capacity_bytes"], ram["hit_ratio"]) == (
        "ram",
        "serving",
        1 << 30,
        None,
    )
    assert (slow["name"], slow["state"], slow["capacity_bytes"], slow["hit_ratio"]) == (
        "disk:/kv",
        "skipped",
        None,
        0.75,
    )
    assert (slow["loads"]["count"], slow["loads"]["seconds"]) == (2, 0.75)
    assert sum(slow["loads"]["buckets"]) == 2
    assert (said["pinned_blocks"], said["miss_curve"]) == (5, [{"bytes": 1024, "miss_ratio": 0.5}])


def test_durations_fall_into_inclusive_buckets() -> None:
    tier = TierStats("ram", TierKind.RAM)
    for seconds in [0.0, 1e-4, 1.1e-4, 10.0, 11.0]:
        tier.store.observe(seconds)
    assert tier.store.counts == array("Q", [2, 1] + [0] * 13 + [1, 1])
    assert tier.load.counts == array("Q", [0] * 17), "histograms share nothing"
