"""Which KV block holds what: ownership, reuse, and blocks found again by the hash of their prefix. Moves no bytes."""

from penstock.kv.pool import BlockPool, OutOfBlocks, PoolCorrupt
from penstock.kv.prefix import HashChain, HashRoot, PrefixCache

__all__ = ["BlockPool", "HashChain", "HashRoot", "OutOfBlocks", "PoolCorrupt", "PrefixCache"]
