"""Which KV block holds what: ownership, reuse, and lookup by the hash of a prefix. Moves no bytes."""

from penstock.kv.pool import BlockPool, OutOfBlocksError, PoolCorruptError
from penstock.kv.prefix import HashChain, HashRoot, PrefixCache

__all__ = [
    "BlockPool",
    "HashChain",
    "HashRoot",
    "OutOfBlocksError",
    "PoolCorruptError",
    "PrefixCache",
]
