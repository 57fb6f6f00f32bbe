"""Opens the tiers behind the KV pools. The native mover works on host memory.

It moves the pools of torch's CPU device directly, because they are in host memory. Blocks of a GPU
are staged (`mover.py`).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from penstock.backends import KvMover
from penstock.backends.mover_options import mover_options
from penstock.backends.torch.async_copy import Copies
from penstock.backends.torch.kv.direct import DirectLoads, Share
from penstock.backends.torch.kv.mover import Answers, StagedMover
from penstock.backends.torch.kv.pool import Pool
from penstock.backends.torch.kv.staging import CHUNKS, Chunks, PinnedSlots
from penstock.backends.torch.shard import Shard
from penstock.config import EngineConfig
from penstock.core import PenstockError
from penstock.core.transfer import OpenTiers
from penstock.kv.gds import KvikioParts
from penstock.model.kv_groups import kv_groups
from penstock.model.spec import Attention, DecoderSpec

if TYPE_CHECKING:
    from penstock import _native

FORMS = {torch.float32: "f32-rows", torch.bfloat16: "bf16-rows"}
"""Names of the element type and layout of a block. They are part of every cache identity, so no
other backend reads such a block.
"""


def open_tiers(
    settings: Mapping[str, Any],
    pools: Sequence[Pool],
    copies: Copies | None,
    direct: Sequence[int] = (),
) -> KvMover:
    """A mover with the options of `mover_settings`. `copies` is None if the pools are in host
    memory. The tiers numbered in `direct` are loaded by GPUDirect Storage. Raises PenstockError
    with the tier that cannot be opened, and the remedy.
    """
    if copies is None:
        return _native_mover([pool.blocks for pool in pools], settings)
    tiers, ram_slots = len(settings["tiers"]), settings["ram_slots"]
    blocks = settings["chunk_tokens"] // pools[0].layout.block_size
    ram = PinnedSlots(pools, ram_slots, copies)
    staging = PinnedSlots(pools, tiers * CHUNKS * blocks, copies)
    chunks = [Chunks(tier * CHUNKS * blocks, blocks) for tier in range(tiers)]
    native = _native_mover(staging.groups, {**settings, "ram_slots": 0})
    share = Share(settings["heads"], [(first, end) for first, end in settings["layers"]])
    answers: Answers = SimpleQueue()
    loads = {
        tier: DirectLoads(KvikioParts(native, tier), share, pools, copies, answers.put)
        for tier in direct
    }
    return StagedMover(native, ram, staging, chunks, copies, loads, answers)


def mover_settings(
    config: EngineConfig, tiers: OpenTiers, spec: DecoderSpec, shard: Shard, pools: Sequence[Pool]
) -> dict[str, Any]:
    """Options of the native mover: the configured tiers, the store identity, and this rank's heads
    and layers in a block.
    """
    settings = mover_options(config, tiers)
    mixer = spec.first_attention
    kv_heads = mixer.kv_heads if isinstance(mixer, Attention) else 1
    heads = shard.kv_heads(mixer.heads // kv_heads) if isinstance(mixer, Attention) else range(1)
    layout = pools[0].layout
    settings["identity"] = {
        "cache": settings.pop("cache"),
        "layers": sum(len(group.layers) for group in kv_groups(spec)),
        "kv_heads": kv_heads,
        "block_tokens": layout.block_size,
        "tile_bytes": replace(layout, layers=1, kv_heads=1).block_bytes,
        "dtype": FORMS[layout.dtype],
    }
    settings["heads"] = list(heads)
    settings["layers"] = _own_layers(spec, shard)
    return settings


def _own_layers(spec: DecoderSpec, shard: Shard) -> list[list[int]]:
    """For each KV group: the half-open range of this rank's layers. Layers of the model are
    numbered group after group.
    """
    found, before = [], 0
    for group in kv_groups(spec):
        ends = (bisect_left(group.layers, at) for at in (shard.layers.start, shard.layers.stop))
        found.append([before + end for end in ends])
        before += len(group.layers)
    return found


def _native_mover(memories: Sequence[Tensor], settings: Mapping[str, Any]) -> _native.KvMover:
    """The native mover over host memory, one tensor of blocks per KV group."""
    from penstock import _native

    pools = [(_bytes_of(memory), len(memory)) for memory in memories]
    try:
        return _native.KvMover.over(pools, json.dumps(settings))
    except ValueError as error:
        raise PenstockError(str(error)) from error


def _bytes_of(memory: Tensor) -> object:
    """A buffer that keeps the tensor's memory alive."""
    return memory.view(-1).view(torch.uint8).numpy()
