"""Sizes that the engine computes: message sizes before the ranks load, the number of KV blocks
afterwards.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.backends import of_torch
from penstock.config import EngineConfig
from penstock.core import KvSpec, Loaded, PenstockError
from penstock.core.codec import plan_bytes, result_bytes
from penstock.core.progress import size as human
from penstock.core.request import MAX_LOGPROBS
from penstock.executor.ranks import RankLayout
from penstock.executor.ranks.transfers import transfer_bytes
from penstock.kv import window_blocks
from penstock.model import ModelInfo
from penstock.model.kv_groups import kv_groups
from penstock.model.sharding import Grid

MIB = 2**20
HOST_BACKENDS = ("cpu", "torch")
"""Names of the backends that keep KV blocks in host memory."""
FLOOR = 256 * MIB
CEILING = 1024 * MIB
TRANSFERS = 5
"""Number of transfer messages that may be in flight to the ranks before the engine blocks."""


def plan_layout(config: EngineConfig, info: ModelInfo, grid: Grid) -> RankLayout:
    """The layout of ranks, with messages large enough for the largest step.

    A plan may register every sequence anew, each with a full block table in every KV group. Its
    size is therefore bounded by `--max-num-seqs` and the maximum length. The number of KV blocks,
    known later, is no tighter bound, because sequences share blocks. A transfer moves blocks of one
    sequence only.
    """
    from penstock._native import HEAD_ROWS

    sequences, tokens = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    length = config.model.max_model_len or info.spec.max_position
    table = -(-length // config.cache.block_size)
    groups = len(kv_groups(info.spec))
    transfers = transfer_bytes(groups * table) if config.tiers.tiers else 0
    vocab = max(end - start for start, end in zip(grid.vocab, grid.vocab[1:], strict=False))
    return RankLayout(
        tp=grid.tp,
        pp=grid.pp,
        reader=grid.reader,
        shards=tuple(json.dumps(grid.shard(rank)) for rank in range(grid.size)),
        group_numbers=max(tokens * info.spec.hidden, HEAD_ROWS * vocab),
        rows_bytes=4 * tokens * info.spec.hidden,
        plan_bytes=max(
            plan_bytes(sequences, tokens, groups, sequences * groups * table, length), transfers
        ),
        result_bytes=result_bytes(sequences, tokens, MAX_LOGPROBS, info.pooler.size),
        spare_messages=TRANSFERS if config.tiers.tiers else 0,
        own_sums=of_torch(config.compute.backend),
    )


@dataclass(frozen=True, slots=True)
class KvPlan:
    blocks: tuple[int, ...]
    """Number of KV blocks of each KV group, the same on every rank."""
    max_model_len: int
    bytes: int
    """Bytes of all blocks on all ranks."""
    block_bytes: int
    """Bytes of one block of every group, summed over all ranks."""
    growth_bytes: int
    """Bytes of one block of every group without a window, summed over all ranks: the memory for
    each `block_size` tokens of a sequence beyond its windows.
    """
    window_bytes: int
    """Bytes of the tokens in one full sliding window, for all groups with a window, summed over all
    ranks.
    """
    notice: str
    """Text for the log: which value was lowered, and why; empty if none was."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the groups without a window."""
        return max(self.blocks)


@dataclass(frozen=True, slots=True)
class KvNeeds:
    """Inputs for the size of the KV pools. `asked_*`: values that the user has set; None if
    unset.
    """

    specs: Sequence[KvSpec]
    """KV shape of each rank."""
    model_len: int
    """The model's maximum length in tokens."""
    max_num_seqs: int
    step_tokens: int
    chunk_tokens: int
    """Tokens of a chunk in the tiers that store chunks; 0 without such tiers."""
    available: int
    """Smallest free memory of all ranks after loading, in bytes."""
    asked_bytes: int | None
    asked_len: int | None
    own_memory: bool = False
    """Whether `available` is memory of a GPU. By default the KV pools then take all of it."""

    @property
    def block_size(self) -> int:
        return self.specs[0].block_size

    def blocks(self, full: int, sequences: int) -> tuple[int, ...]:
        """Number of blocks to allocate for each group, given `full` blocks for groups without a
        window, and `sequences` sequences.

        In a group with a window, a sequence needs at most the sum of its window, the tokens of one
        step, one chunk (its blocks stay until the chunk is full and stored) and a partial block.
        Blocks beyond that number would never be used.
        """
        tokens = self.step_tokens + self.chunk_tokens
        return tuple(
            full
            if group.window is None
            else min(full, sequences * window_blocks(group.window, tokens, self.block_size))
            for group in self.specs[0].groups
        )

    def rank_bytes(self, blocks: Sequence[int]) -> list[int]:
        """Bytes that the pools take on each rank, for these numbers of blocks per group."""
        return [
            sum(count * group.block_bytes for count, group in zip(blocks, spec.groups, strict=True))
            for spec in self.specs
        ]

    def fit(self, size: int) -> int:
        """Maximum number of blocks in the groups without a window, so that the pools of every rank
        fit in `size` bytes.
        """
        growth = max(sum(g.block_bytes for g in s.groups if g.window is None) for s in self.specs)
        sequence = -(-self.model_len // self.block_size)
        most = size // growth if growth else self.max_num_seqs * sequence

        def needed(full: int) -> int:
            return max(self.rank_bytes(self.blocks(full, self.max_num_seqs)))

        return bisect_right(range(most + 1), size, key=needed) - 1


def size_kv(config: EngineConfig, info: ModelInfo, loaded: Sequence[Loaded]) -> KvPlan:
    """Size the KV pools. Raises PenstockError if the memory is too small for the user's settings,
    or for one block.
    """
    return plan_kv(kv_needs(config, info, loaded))


def kv_needs(config: EngineConfig, info: ModelInfo, loaded: Sequence[Loaded]) -> KvNeeds:
    return KvNeeds(
        specs=[each.kv_spec for each in loaded],
        model_len=info.spec.max_position,
        max_num_seqs=config.scheduler.max_num_seqs,
        step_tokens=config.scheduler.max_num_batched_tokens,
        chunk_tokens=config.tiers.chunk_tokens if config.tiers.named else 0,
        available=min(each.free_memory for each in loaded),
        asked_bytes=config.cache.memory_bytes,
        asked_len=config.model.max_model_len,
        own_memory=all(each.facts.own_memory for each in loaded),
    )


def plan_kv(needs: KvNeeds) -> KvPlan:
    """Size the KV pools. The default has room for two sequences of full length and at least 256
    MiB, but at most 1 GiB, half of the free memory, and what `max_num_seqs` full sequences can
    fill. On a CPU, the kernel allocates a page only when it is first written. On a device with its
    own memory the default is all free memory, but at most what those sequences can fill.

    If one sequence of full length does not fit, the maximum length is lowered; if the user has set
    that length, PenstockError is raised.
    """
    length = needs.asked_len or needs.model_len
    table = -(-length // needs.block_size)
    per_sequence = max(needs.rank_bytes(needs.blocks(table, 1)))
    size = needs.asked_bytes
    if size is not None and size > needs.available:
        raise PenstockError(
            f"--kv-cache-memory-bytes: {size} bytes for each rank are more than the "
            f"{needs.available} that are free for one: lower it or free memory"
        )
    if size is None:
        most = max(needs.rank_bytes(needs.blocks(needs.max_num_seqs * table, needs.max_num_seqs)))
        wanted = min(max(2 * per_sequence, FLOOR), CEILING, needs.available // 2)
        size = min(needs.available if needs.own_memory else wanted, most)
    full = needs.fit(size)
    if full < 1:
        raise _no_block(needs, size)
    held = full * needs.block_size
    if held < length and needs.asked_len:
        raise PenstockError(
            f"--max-model-len {length} needs {per_sequence} bytes of KV cache, there are {size} "
            f"(room for {held} tokens): lower it or raise --kv-cache-memory-bytes"
        )
    notice = ""
    if held < length:
        notice = (
            f"max_model_len lowered from {length} to {held}: the KV cache of {size} bytes holds no "
            "more; raise --kv-cache-memory-bytes for longer prompts and answers"
        )
    blocks = needs.blocks(full, needs.max_num_seqs)
    size, windows = needs.block_size, [group.window for group in needs.specs[0].groups]
    seen = [0 if window is None else window_blocks(window, 0, size) for window in windows]
    return KvPlan(
        blocks,
        max_model_len=min(length, held),
        bytes=sum(needs.rank_bytes(blocks)),
        block_bytes=sum(needs.rank_bytes([1] * len(blocks))),
        growth_bytes=sum(needs.rank_bytes([window is None for window in windows])),
        window_bytes=sum(needs.rank_bytes(seen)),
        notice=notice,
    )


def check_ram_tier(config: EngineConfig, kv: KvPlan, loaded: Sequence[Loaded]) -> None:
    """Check that a RAM tier and the KV cache fit into each rank's free memory; raises
    PenstockError. All pages of the tier are written at start-up, so without this check the kernel's
    out-of-memory killer would end the engine at every start. On a GPU the tier is pinned host
    memory.
    """
    ram = config.tiers.ram
    if ram is None or not ram.size_bytes:
        return
    for each in loaded:
        share = sum(group.block_bytes for group in each.kv_spec.groups) / kv.block_bytes
        wanted = int(ram.size_bytes * share)
        if each.facts.own_memory and each.facts.host_memory:
            room = each.facts.host_memory
            there = f"its host has {human(room)} of free memory for it"
            remedy = "or free memory of the host"
        elif config.compute.backend in HOST_BACKENDS:
            groups = zip(kv.blocks, each.kv_spec.groups, strict=True)
            pool = sum(count * group.block_bytes for count, group in groups)
            room = each.free_memory - pool
            there = (
                f"of its {human(each.free_memory)} of free memory the KV cache takes {human(pool)}"
            )
            remedy = "lower --kv-cache-memory-bytes or free memory"
        else:
            continue
        if wanted > room:
            most = max(int(room / share), 0) // MIB
            raise PenstockError(
                f"--kv-tier ram: {human(ram.size_bytes)} do not fit: a rank would keep "
                f"{human(wanted)}, and {there}. Lower it to at most ram:{most}MiB, {remedy}"
            )


def _no_block(needs: KvNeeds, size: int) -> PenstockError:
    block = max(needs.rank_bytes(needs.blocks(1, 1)))
    takes = f"one block of {needs.block_size} tokens takes {block}"
    if needs.asked_bytes is not None:
        return PenstockError(f"--kv-cache-memory-bytes: {size} bytes hold no block, {takes}")
    if needs.own_memory:
        return PenstockError(
            f"{needs.available} bytes of the device are free beside weights, the largest step and "
            f"graphs: {takes}. Lower --max-num-batched-tokens or --max-num-seqs, or cut the model "
            "with --tensor-parallel-size or --pipeline-parallel-size"
        )
    return PenstockError(
        f"{needs.available} bytes of memory are free after loading, half of it holds no KV block: "
        f"{takes}. Free memory, or set --kv-cache-memory-bytes"
    )
