"""Transfers of KV between the pool and the tiers behind it, and their results.

Each rank moves its own part of the blocks (its layers, its KV heads). All ranks get the same
transfers in the same order. Until every rank has answered, a block in a transfer has no other use:
no plan contains a block that is being loaded, and no plan writes a block that is being stored.
"""

from __future__ import annotations

import builtins
from array import array
from dataclasses import dataclass, field
from enum import IntEnum

RAM = 0
"""`Transfer.tier` of the RAM tier. The others are numbered from 1 in the order of their --kv-tier
flags.
"""
KEY_BYTES = 32
GROUP_BYTES = 4
"""Number of bytes at the beginning of a digest that are its salt group (`crates/kv/prefix`): they
identify model, adapter and cache salt.
"""


class TransferKind(IntEnum):
    LOAD = 1
    """Copy from a tier to the pool."""
    STORE = 2
    """Copy from the pool to a tier."""
    PROBE = 3
    """Query which of several chunks a tier has."""
    REMOVE = 4
    """Remove chunks from all tiers that store chunks (all but RAM)."""
    CANCEL = 5
    """Cancel the transfers `ids`: those not started are answered as not done. CANCEL itself gets no
    answer.
    """
    CLEAR = 6
    """Remove the chunks of one salt group from all tiers that store chunks; without keys, all
    chunks of this cache identity.
    """


class Fault(IntEnum):
    """Whether a transfer failed because of its tier, and how. The highest value of all ranks
    counts.
    """

    NONE = 0
    """No fault of the tier: done, missing, cancelled, or not supported by the tier."""
    FULL = 1
    """STORE: out of space, or the daily write budget is spent."""
    DAMAGED = 2
    """LOAD: a part failed verification and was quarantined."""
    FAILED = 3
    """The tier reported an error, or did not answer."""


@dataclass(frozen=True, slots=True)
class OpenTiers:
    """Settings of the tiers that the engine sends to all ranks after they have loaded. All other
    settings of the tiers come from the configuration.
    """

    cache: str
    """Cache identity as 64 hex digits: hash of the whole model's weights, numerics and spec; the
    same on all ranks.
    """
    ram_slots: int
    """Number of entries (slots) of the RAM tier on each rank. An entry holds one block of every KV
    group.
    """
    flush_s: float
    """Seconds that stores in flight may take when the executor closes."""


@dataclass(slots=True)
class Transfer:
    """One transfer of KV blocks, or an operation on the tiers. It names at most as many blocks,
    chunks or ids as the pools have blocks, so that it fits into a message.
    """

    id: int
    """Number of the transfer, ascending from 1. Ignored for CANCEL."""
    kind: TransferKind
    tier: int = RAM
    blocks: array[int] = field(default_factory=lambda: array("i"))
    """Block numbers, group after group, the same number for each group, in token order. For LOAD
    and STORE, the blocks of one chunk (RAM: of any number). For LOAD, NO_BLOCK marks entries that a
    group does not need.
    """
    slots: array[int] = field(default_factory=lambda: array("i"))
    """RAM only: for each block table entry, the slot of the RAM tier that holds its blocks of all
    groups.
    """
    keys: bytes = b""
    """Not for loads and stores in RAM: 32 bytes for each chunk, the digest of its last block. LOAD
    and STORE have one key, REMOVE at least one. CLEAR has a salt group of 4 bytes, or nothing.
    """
    counts: array[int] = field(default_factory=lambda: array("i"))
    """PROBE only: number of blocks of each chunk."""
    ids: array[int] = field(default_factory=lambda: array("q"))
    """CANCEL only: ids of the transfers to cancel."""
    parent: bytes = b""
    """STORE to a tier other than RAM: digest of the block that precedes the chunk; empty for the
    first chunk of a sequence.
    """


@dataclass(slots=True)
class TransferResult:
    """Answer of one rank, or of all ranks combined."""

    id: int
    done: bool
    """True if the whole transfer succeeded (not for PROBE)."""
    found: bytes = b""
    """PROBE: one byte for each chunk in question, 1 if the tier has all its parts (one per KV
    head).
    """
    bytes: int = 0
    seconds: float = 0.0
    """Seconds that the transfer took, without the time in the queue."""
    waited: float = 0.0
    """Seconds that the transfer waited in the queue."""
    error: str = ""
    """Reason why the transfer is not done; empty also if the data was missing or the transfer was
    cancelled.
    """
    fault: Fault = Fault.NONE
    """Fault of the tier that `error` describes."""
    left: builtins.bytes = b""
    """Digests of chunks that the tier has dropped since the last report."""
