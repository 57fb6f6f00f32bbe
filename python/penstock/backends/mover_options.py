"""Options of the native mover: the tiers of the configuration."""

from __future__ import annotations

from penstock.config import EngineConfig
from penstock.config.devices import with_feature
from penstock.config.sections import TierConfig
from penstock.config.tiers import object_options
from penstock.core import PenstockError
from penstock.core.transfer import OpenTiers


def mover_options(config: EngineConfig, tiers: OpenTiers) -> dict[str, object]:
    """Options of `penstock._native.KvMover` from the configuration. The caller adds the options for
    its rank's share of a block.
    """
    return {
        "cache": tiers.cache,
        "ram_slots": tiers.ram_slots,
        "tiers": [tier_options(tier) for tier in config.tiers.named],
        "chunk_tokens": config.tiers.chunk_tokens,
    }


def direct_tiers(config: EngineConfig, *, supported: bool) -> list[int]:
    """Numbers (from 1, in order of configuration) of the tiers that are read by GPUDirect Storage.
    Raises PenstockError if such a tier is configured but the device does not support that.
    """
    found = [at for at, tier in enumerate(config.tiers.named, start=1) if tier.gds]
    if found and not supported:
        name = config.tiers.named[found[0] - 1].name
        reason = f"gds=true is for the memory of GPUs (--device {with_feature('gds')})"
        raise PenstockError(f"--kv-tier {name}: {reason}")
    return found


def tier_options(tier: TierConfig) -> dict[str, object]:
    if tier.kind == "disk":
        return {
            "kind": "disk",
            "path": tier.path,
            "limit_bytes": tier.size_bytes,
            "daily_write_bytes": tier.daily_write_bytes,
            "quota": tier.quota if tier.quota < 1.0 else None,
        }
    if tier.kind == "redis":
        return {"kind": "redis", "url": tier.url, "ttl_s": tier.ttl_seconds}
    return {"kind": "object", "url": tier.url, "options": object_options(tier)}
