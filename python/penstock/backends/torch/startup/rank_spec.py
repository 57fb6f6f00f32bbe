"""Specification of a rank: its shard of the model, the types, and the limits of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from penstock.backends.torch import shard as shards
from penstock.backends.torch.checks import GroupLimits, Limits
from penstock.backends.torch.kv.pool import Layout
from penstock.backends.torch.shard import Shard
from penstock.config import EngineConfig
from penstock.model.kv_groups import kv_groups
from penstock.model.spec import DecoderSpec, LatentAttention


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Everything known about a rank before its weights are read."""

    model: DecoderSpec
    shard: Shard
    dtype: torch.dtype
    """Type of weights and activations."""
    kv_dtype: torch.dtype
    layouts: tuple[Layout, ...]
    """Layout of a block in each KV group."""
    limits: Limits
    """Limits of a step. The KV groups are not included yet, because their pools are sized later."""

    @property
    def table_width(self) -> int:
        """Entries of a block table, enough for the longest sequence."""
        return -(-self.limits.max_position // self.limits.block_size)

    @property
    def has_whole_steps(self) -> bool:
        """True if this rank computes steps from token ids to sampled tokens, that is, if there are
        no pipeline stages, which exchange activations through the host.
        """
        return self.shard.embeds and self.shard.has_head

    def limits_with(self, groups: Sequence[GroupLimits]) -> Limits:
        return replace(self.limits, groups=tuple(groups))


def rank_spec(config: EngineConfig, model: DecoderSpec, part: str | None) -> RankSpec:
    """The specification of a rank. `part`: its shard as JSON; None for the whole model."""
    shard = shards.whole(model) if part is None else shards.parse(part, model)
    exact = config.model.dtype == "float32" or config.model.quantization == "none"
    kv_dtype = torch.float32 if config.kv_dtype == "float32" else torch.bfloat16
    size = config.cache.block_size
    groups = kv_groups(model, shard.layers)
    limits = Limits(
        slots=config.scheduler.max_num_seqs,
        tokens=config.scheduler.max_num_batched_tokens,
        vocab=model.vocab,
        max_position=config.model.max_model_len or model.max_position,
        block_size=size,
        groups=(),
        last_sampled=shard.embeds and shard.has_head,
    )
    return RankSpec(
        model,
        shard,
        torch.float32 if exact else torch.bfloat16,
        kv_dtype,
        tuple(_layout(model, shard, len(group.layers), size, kv_dtype) for group in groups),
        limits,
    )


def _layout(model: DecoderSpec, shard: Shard, layers: int, size: int, dtype: torch.dtype) -> Layout:
    mixer = model.first_attention
    if isinstance(mixer, LatentAttention):
        return Layout(layers, 1, mixer.kv_rank + mixer.rope_dim, True, size, dtype)
    heads = len(shard.kv_heads(mixer.heads // mixer.kv_heads))
    return Layout(layers, heads, mixer.head_dim, False, size, dtype)
