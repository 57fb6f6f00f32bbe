"""Transfers of KV between the pool and the tiers behind it, and their results.

Each rank moves its own part of the blocks (its layers, its KV heads). All ranks get the same
transfers in the same order. Until every rank has answered, a block in a transfer has no other use:
a block being loaded is in no plan, a block being stored is not written.
"""

from __future__ import annotations

import builtins
from array import array
from dataclasses import dataclass, field
from enum import IntEnum

RAM = 0
"""`Transfer.tier` of the RAM tier. The others are numbered from 1 in the order of their flags."""
KEY_BYTES = 32
GROUP_BYTES = 4
"""Length of a digest's first part, its salt group (`crates/kv/prefix`)."""


class TransferKind(IntEnum):
    LOAD = 1
    """Tier -> pool."""
    STORE = 2
    """Pool -> tier."""
    PROBE = 3
    """Query which of several chunks a tier has."""
    REMOVE = 4
    """Remove chunks from all chunk tiers."""
    CANCEL = 5
    """Cancel the transfers `ids`: those not started are answered as not done. CANCEL itself gets no
    answer.
    """
    CLEAR = 6
    """Remove one salt group from all chunk tiers; without keys, everything of this cache identity.
    """


class Fault(IntEnum):
    """Fault of the tier behind a failed transfer. The largest value of all ranks counts."""

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
    """Message from the engine to all ranks after loading. All other settings of the tiers come from
    the configuration.
    """

    cache: str
    """Cache identity of the whole model, as 64 hex digits."""
    ram_slots: int
    """Entries of the RAM tier on each rank. An entry holds one block of every KV group."""
    flush_s: float
    """Seconds that stores in flight may take when the executor closes."""


@dataclass(slots=True)
class Transfer:
    """A transfer names at most as many blocks, chunks or ids as the pools have blocks, so that it
    fits into a message.
    """

    id: int
    """Ascending from 1. Ignored for CANCEL."""
    kind: TransferKind
    tier: int = RAM
    blocks: array[int] = field(default_factory=lambda: array("i"))
    """Block numbers, group after group, the same number for each group, in token order. For LOAD
    and STORE, the blocks of one chunk (RAM: of any number). For LOAD, NO_BLOCK marks entries that a
    group does not need.
    """
    slots: array[int] = field(default_factory=lambda: array("i"))
    """RAM only: the slot for the blocks of all groups at the same index."""
    keys: bytes = b""
    """Chunk tiers only: 32 bytes for each chunk, the digest of its last block. LOAD and STORE have
    one key, REMOVE at least one. CLEAR has a salt group of 4 bytes, or nothing.
    """
    counts: array[int] = field(default_factory=lambda: array("i"))
    """PROBE only: number of blocks of each chunk."""
    ids: array[int] = field(default_factory=lambda: array("q"))
    """CANCEL only."""
    parent: bytes = b""
    """STORE to chunk tiers: digest of the block before the chunk; empty for the first chunk."""


@dataclass(slots=True)
class TransferResult:
    """Answer of one rank, or of all ranks combined."""

    id: int
    done: bool
    """True if the whole transfer succeeded (not for PROBE)."""
    found: bytes = b""
    """PROBE: one byte for each chunk, 1 if the tier has all its parts."""
    bytes: int = 0
    seconds: float = 0.0
    """Transfer time, without the time in the queue."""
    waited: float = 0.0
    """Seconds in the queue."""
    error: str = ""
    """Reason if not done; empty if the data was missing or the transfer cancelled."""
    fault: Fault = Fault.NONE
    """The tier's fault that `error` describes."""
    left: builtins.bytes = b""
    """Digests of chunks that have left the tier and were not reported before."""
