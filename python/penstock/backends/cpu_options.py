"""Options of the native decoder and its mover."""

from __future__ import annotations

from penstock.config import EngineConfig
from penstock.config.sections import TierConfig
from penstock.config.tiers import object_options
from penstock.core.transfer import OpenTiers


def decoder_options(config: EngineConfig) -> dict[str, object]:
    return {
        "threads": config.compute.threads,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "max_batched_tokens": config.scheduler.max_num_batched_tokens,
        "block_size": config.cache.block_size,
        "kv_dtype": config.kv_dtype,
        "quantization": config.model.quantization,
        "dtype": config.model.dtype,
        "isa": config.compute.isa,
    }


def mover_options(config: EngineConfig, tiers: OpenTiers) -> dict[str, object]:
    """Options of `penstock._native.KvMover`. The decoder knows its own layers and heads."""
    return {
        "cache": tiers.cache,
        "ram_slots": tiers.ram_slots,
        "tiers": [tier_options(tier) for tier in config.tiers.named],
        "chunk_tokens": config.tiers.chunk_tokens,
    }


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
