"""Bookkeeping of the KV pools: ownership, block tables, lookup by digest. Moves no bytes."""

from penstock.kv.cache import BlockTable, KvCache, window_blocks
from penstock.kv.events import KvEvents
from penstock.kv.hashing import BlockHasher, HashChain, HashRoot
from penstock.kv.pool import BlockPool, OutOfBlocksError, PoolCorruptError

__all__ = [
    "BlockHasher",
    "BlockPool",
    "BlockTable",
    "HashChain",
    "HashRoot",
    "KvCache",
    "KvEvents",
    "OutOfBlocksError",
    "PoolCorruptError",
    "window_blocks",
]
