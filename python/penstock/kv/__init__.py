"""Bookkeeping of the KV pools in the engine: which sequences own which blocks, block tables, lookup
of blocks by digest. Moves no bytes: the backends hold the memory.
"""

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
