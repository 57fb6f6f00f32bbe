"""Size of the KV cache, and the longest sequence that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core import PenstockError

MIB = 2**20
FLOOR = 256 * MIB
CEILING = 1024 * MIB


@dataclass(frozen=True, slots=True)
class KvPlan:
    num_blocks: int
    block_bytes: int
    max_model_len: int
    notice: str
    """What was lowered and why; empty for nothing."""

    @property
    def bytes(self) -> int:
        return self.num_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class KvNeeds:
    """Facts that decide the size. `asked_*` is None without a flag."""

    token_bytes: int
    """Keys and values of one token in all layers."""
    block_size: int
    model_len: int
    """Positions that the model was trained for."""
    max_num_seqs: int
    available: int
    """Free memory after the weights."""
    asked_bytes: int | None
    asked_len: int | None


def plan_kv(needs: KvNeeds) -> KvPlan:
    """By default as much as two sequences of full length take, at least 256 MiB; but at most 1 GiB,
    half of what is free, and what `max_num_seqs` full sequences can fill. Pages are touched as
    blocks are used.

    When one sequence of full length does not fit, the length is lowered, unless the user asked for
    it: then PenstockError has the numbers.
    """
    length = needs.asked_len or needs.model_len
    block_bytes = needs.token_bytes * needs.block_size
    per_sequence = -(-length // needs.block_size) * block_bytes
    size = needs.asked_bytes
    if size is None:
        size = min(
            max(2 * per_sequence, FLOOR),
            CEILING,
            needs.available // 2,
            needs.max_num_seqs * per_sequence,
        )
    num_blocks = size // block_bytes
    if num_blocks < 1:
        raise PenstockError(
            f"--kv-cache-memory-bytes: {size} bytes hold no block, one block of "
            f"{needs.block_size} tokens takes {block_bytes}"
        )
    held = num_blocks * needs.block_size
    if held >= length:
        return KvPlan(num_blocks, block_bytes, length, "")
    if needs.asked_len:
        raise PenstockError(
            f"--max-model-len {length} needs {per_sequence} bytes of KV cache, there are {size} "
            f"(room for {held} tokens): lower it or raise --kv-cache-memory-bytes"
        )
    notice = (
        f"max_model_len lowered from {length} to {held}: the KV cache of {size} bytes holds no more"
    )
    return KvPlan(num_blocks, block_bytes, held, notice)
