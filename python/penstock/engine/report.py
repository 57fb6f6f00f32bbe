"""State of the KV tiers, from the engine's counts and the reports of the ranks' movers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy

from penstock.core import Durations, TierReport, TierState, TierStats
from penstock.kv_tiers import Tiers

STATES = {"closed": TierState.SERVING, "open": TierState.SKIPPED, "half_open": TierState.TRYING}


def tier_report(tiers: Tiers, movers: Iterable[str]) -> TierReport:
    """Counters of several ranks are added; a tier is skipped when it is by one of them."""
    counts, ram = tiers.counts, tiers.ram()
    stats = deepcopy(list(counts.tiers))
    for text in movers:
        said = {each["name"]: each for each in json.loads(text).get("tiers", [])}
        for each in stats[1:]:
            rank = said.get(each.name, {})
            counters = rank.get("counters", {})
            each.evicted_chunks += counters.get("evicted_chunks", 0)
            each.quarantined_chunks += rank.get("damaged", 0)
            each.used_bytes = max(each.used_bytes, counters.get("used_bytes", 0))
            each.state = max(
                each.state, STATES.get(rank.get("breaker", "closed"), TierState.SERVING)
            )
    stats[0].used_bytes, stats[0].evicted_chunks = ram.used_bytes, ram.evicted
    return TierReport(
        tiers=stats if ram.slots else stats[1:],
        lookup_tokens=counts.lookup_tokens,
        decisions=counts.decisions,
        pinned_blocks=ram.pinned,
        miss_curve=ram.curve,
    )


def report_fields(report: TierReport) -> dict[str, object]:
    """Members of the JSON object of TIERS and `GET /v1/kv`. A ratio of nothing is None."""
    hits = sum(tier.hit_tokens for tier in report.tiers)
    decisions = report.decisions
    return {
        "lookup_tokens": report.lookup_tokens,
        "hit_tokens": hits,
        "hit_ratio": _ratio(hits, report.lookup_tokens),
        "decisions": {"load": decisions.load, "compute": decisions.compute, "both": decisions.both},
        "pinned_blocks": report.pinned_blocks,
        "tiers": [_tier(tier) for tier in report.tiers],
        "miss_curve": [{"bytes": size, "miss_ratio": ratio} for size, ratio in report.miss_curve],
    }


def _tier(tier: TierStats) -> dict[str, object]:
    return {
        "name": tier.name,
        "kind": tier.kind.name.lower(),
        "state": tier.state.name.lower(),
        "used_bytes": tier.used_bytes,
        "capacity_bytes": tier.capacity_bytes or None,
        "hits": tier.hits,
        "misses": tier.misses,
        "hit_ratio": _ratio(tier.hits, tier.hits + tier.misses),
        "hit_tokens": tier.hit_tokens,
        "loaded_bytes": tier.loaded_bytes,
        "stored_bytes": tier.stored_bytes,
        "loads": _times(tier.load),
        "stores": _times(tier.store),
        "errors": tier.errors,
        "evicted_chunks": tier.evicted_chunks,
        "quarantined_chunks": tier.quarantined_chunks,
        "dropped_stores": tier.dropped_stores,
    }


def _times(durations: Durations) -> dict[str, object]:
    counts = list(durations.counts)
    return {"count": sum(counts), "seconds": durations.seconds, "buckets": counts}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
