"""What the rank's mover is told of the tiers."""

from __future__ import annotations

import json

from penstock.config import EngineConfig
from penstock.config.sections import TierConfig
from penstock.core.transfer import OpenTiers


def mover_options(config: EngineConfig, rank: tuple[str, str] | None, tiers: OpenTiers) -> dict[str, object]:
    """What `penstock._native.KvMover` reads. `rank` is as for `create`.

    The first rank of each stage keeps the stores tidy: stages may be on different hosts, whose directories
    are different ones.
    """
    return {
        "cache": tiers.cache,
        "ram_slots": tiers.ram_slots,
        "tiers": [_named(tier) for tier in config.tiers.named],
        "keeper": rank is None or json.loads(rank[0])["rank"] == 0,
    }


def _named(tier: TierConfig) -> dict[str, object]:
    if tier.kind == "disk":
        return {
            "kind": "disk",
            "path": tier.path,
            "limit_bytes": tier.size_bytes,
            "daily_write_bytes": tier.daily_write_bytes,
            "direct": tier.direct,
        }
    if tier.kind == "redis":
        return {"kind": "redis", "url": tier.url, "ttl_s": tier.ttl_seconds}
    return {"kind": "object", "url": tier.url, "options": dict(tier.options)}
