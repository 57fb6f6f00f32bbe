"""What a KV_REPLY to a report, and so `GET /v1/kv`, says of the tiers."""

from __future__ import annotations

from penstock.core import Durations, TierReport, TierStats


def report_fields(report: TierReport) -> dict[str, object]:
    """The tiers as members of a JSON object. A ratio of nothing is None."""
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
    return {"count": sum(durations.counts), "seconds": durations.seconds}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
