"""The native decoder as a worker."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import EngineConfig
from penstock.config.machine import available_memory
from penstock.config.memory import KvNeeds, KvPlan, plan_kv
from penstock.core import PenstockError, StepPlan, WorkerFacts
from penstock.model import ModelInfo

if TYPE_CHECKING:
    from penstock._native import Decoder, Ticket

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
HEAD_DIM_UNIT = 16
"""Heads are padded to whole vectors in the KV pool."""


def create(config: EngineConfig, info: ModelInfo) -> Worker:
    """Load the weights and reserve the KV blocks; errors name the tensor, the flag or the size at fault."""
    from penstock._native import Decoder

    kv = plan_kv(kv_needs(config, info, available_memory() - weight_bytes(info)))
    options = decoder_options(config, kv)
    try:
        decoder = Decoder(info.spec.to_json(), info.names.to_json(), list(info.paths), json.dumps(options))
    except ValueError as error:
        raise PenstockError(str(error)) from error
    return Worker(decoder, config, info, kv)


class Worker:
    def __init__(self, decoder: Decoder, config: EngineConfig, info: ModelInfo, kv: KvPlan) -> None:
        self._decoder = decoder
        self.facts = WorkerFacts(
            cache_identity=cache_identity(decoder, config, info),
            numerics=decoder.numerics,
            isa=decoder.isa,
            threads=decoder.threads,
            weights_bytes=decoder.weights_bytes,
            num_blocks=kv.num_blocks,
            block_bytes=kv.block_bytes,
            max_model_len=kv.max_model_len,
            stages=tuple(decoder.stages),
            notice=kv.notice,
        )

    def submit(self, plan: StepPlan) -> Ticket:
        return self._decoder.submit(plan)

    def close(self) -> None:
        del self._decoder


def decoder_options(config: EngineConfig, kv: KvPlan) -> dict[str, object]:
    return {
        "threads": config.compute.threads,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "max_batched_tokens": config.scheduler.max_num_batched_tokens,
        "block_size": config.cache.block_size,
        "num_blocks": kv.num_blocks,
        "kv_dtype": kv_dtype(config),
        "quantization": config.model.quantization,
        "dtype": config.model.dtype,
        "isa": config.compute.isa,
    }


def kv_dtype(config: EngineConfig) -> str:
    """Form of cached keys and values: as asked for, else float32 where all else is, else bfloat16."""
    if config.cache.dtype != "auto":
        return config.cache.dtype
    whole = config.model.quantization == "none" or (
        config.model.quantization == "auto" and config.model.dtype == "float32"
    )
    return "float32" if whole else "bfloat16"


def kv_needs(config: EngineConfig, info: ModelInfo, available: int) -> KvNeeds:
    attention = info.spec.attention
    head_dim = -(-attention.head_dim // HEAD_DIM_UNIT) * HEAD_DIM_UNIT
    per_layer = 2 * attention.kv_heads * head_dim * DTYPE_BYTES[kv_dtype(config)]
    return KvNeeds(
        token_bytes=info.spec.layers * per_layer,
        block_size=config.cache.block_size,
        model_len=info.spec.max_position,
        max_num_seqs=config.scheduler.max_num_seqs,
        available=available,
        asked_bytes=config.cache.memory_bytes,
        asked_len=config.model.max_model_len,
    )


def weight_bytes(info: ModelInfo) -> int:
    """Size of the weight files: about what the packed weights will take."""
    files: list[Path] = []
    for path in map(Path, info.paths):
        files += path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def cache_identity(decoder: Decoder, config: EngineConfig, info: ModelInfo) -> bytes:
    parts = (decoder.fingerprint.hex(), decoder.numerics, kv_dtype(config), info.spec.to_json())
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()
