"""What the ranks need: memory for keys and values, and room for what they say to each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from penstock.config import EngineConfig
from penstock.config.machine import available_memory
from penstock.config.memory import KvNeeds, KvPlan, plan_kv
from penstock.core import Ranks
from penstock.core.codec import plan_bytes, result_bytes
from penstock.core.request import MAX_LOGPROBS
from penstock.core.transfer_codec import transfer_bytes
from penstock.model import ModelInfo
from penstock.model.sharding import Grid

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
HEAD_DIM_UNIT = 16
"""Heads are padded to whole vectors in the KV pool."""
TRANSFERS = 5
"""Transfers that may be on their way to the ranks before the engine waits for room."""
HEAD_ROWS = 32
"""Rows for which the output head is computed at once (`crates/decoder/src/logits.rs`)."""


@dataclass(frozen=True, slots=True)
class KvSizes:
    plan: KvPlan
    """For the largest rank: all ranks have as many blocks."""
    block_bytes: int
    """Of a block on all ranks together."""


def size_kv(config: EngineConfig, info: ModelInfo, grid: Grid) -> KvSizes:
    """PenstockError when the KV cache asked for does not hold what is asked of it."""
    each = [token_bytes(config, info, grid, rank) for rank in range(grid.size)]
    # Of this host: the ranks of others have what theirs have, which should be no less.
    here = config.parallel.most_ranks_on_a_node
    available = (available_memory() - weight_bytes(info) * here // grid.size) // here
    plan = plan_kv(kv_needs(config, info, available, max(each)))
    return KvSizes(plan, sum(each) * config.cache.block_size)


def token_bytes(config: EngineConfig, info: ModelInfo, grid: Grid, rank: int) -> int:
    """Keys and values of a token on one rank."""
    stage = rank // grid.tp
    layers = grid.layers[stage + 1] - grid.layers[stage]
    head_dim = -(-info.spec.attention.head_dim // HEAD_DIM_UNIT) * HEAD_DIM_UNIT
    return layers * 2 * grid.kv_heads(rank, info.spec) * head_dim * DTYPE_BYTES[config.kv_dtype]


def kv_needs(config: EngineConfig, info: ModelInfo, available: int, token: int) -> KvNeeds:
    return KvNeeds(
        token_bytes=token,
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


def plan_ranks(config: EngineConfig, info: ModelInfo, grid: Grid, kv: KvPlan) -> Ranks:
    """The grid with room for the largest step."""
    sequences, tokens = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    table = min(-(-kv.max_model_len // config.cache.block_size), kv.num_blocks)
    transfers = transfer_bytes(kv.num_blocks) if config.tiers.tiers else 0
    vocab = max(end - start for start, end in zip(grid.vocab, grid.vocab[1:], strict=False))
    return Ranks(
        tp=grid.tp,
        pp=grid.pp,
        reader=grid.reader,
        shards=tuple(json.dumps(grid.shard(rank)) for rank in range(grid.size)),
        num_blocks=kv.num_blocks,
        part_numbers=max(tokens * info.spec.hidden, HEAD_ROWS * vocab),
        rows_bytes=4 * tokens * info.spec.hidden,
        plan_bytes=max(plan_bytes(sequences, tokens, sequences * table), transfers),
        result_bytes=result_bytes(sequences, tokens, MAX_LOGPROBS),
        spare_messages=TRANSFERS if config.tiers.tiers else 0,
    )
