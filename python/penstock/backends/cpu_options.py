"""Options of the native decoder."""

from __future__ import annotations

from penstock.config import EngineConfig


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
