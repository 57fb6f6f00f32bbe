"""Bookkeeping of the pools in the engine: which sequences own which blocks and state slots, block
tables, lookup of blocks and state checkpoints by digest. Moves no bytes: the backends hold the
memory.
"""

from penstock.kv.cache import BlockTable, KvCache, Match, window_blocks
from penstock.kv.events import KvEvents
from penstock.kv.hashing import BlockHasher, HashChain, HashRoot
from penstock.kv.pool import BlockPool, OutOfBlocksError, PoolCorruptError
from penstock.kv.states import RowState, StatePool, StateTable

__all__ = [
    "BlockHasher",
    "BlockPool",
    "BlockTable",
    "HashChain",
    "HashRoot",
    "KvCache",
    "KvEvents",
    "Match",
    "OutOfBlocksError",
    "PoolCorruptError",
    "RowState",
    "StatePool",
    "StateTable",
    "window_blocks",
]
