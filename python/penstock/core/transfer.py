"""Transfers of KV between the pool and the tiers behind it, and their answers.

Each rank moves its own part (its layers, its KV heads) of the blocks; all ranks get the same
transfers in the same order. A block in a transfer has no other use until every rank has answered:
one that is loaded is in no plan, one that is stored is not written to.
"""

from __future__ import annotations

import builtins
from array import array
from dataclasses import dataclass, field
from enum import IntEnum

RAM = 0
"""`Transfer.tier` of the RAM tier; the others count from 1 in the order of their flags."""
KEY_BYTES = 32
GROUP_BYTES = 4
"""First bytes of a digest: its salt group (`crates/kv/prefix`)."""


class TransferKind(IntEnum):
    LOAD = 1
    """Tier -> pool."""
    STORE = 2
    """Pool -> tier."""
    PROBE = 3
    """Which of several chunks a tier has."""
    REMOVE = 4
    """Forget chunks, in all chunk tiers."""
    CANCEL = 5
    """Transfers `ids` are not wanted any more; those not begun are answered as not done. Not
    answered itself.
    """
    CLEAR = 6
    """Forget one salt group, in all chunk tiers; without keys, everything of this
    identity.
    """


class Fault(IntEnum):
    """What a transfer that was not done says of its tier; the largest of several ranks counts."""

    NONE = 0
    """Nothing: done, missing, cancelled, or not what a tier can do."""
    FULL = 1
    """STORE: for want of room, or of what the day may write."""
    DAMAGED = 2
    """LOAD: a part failed verification, and was put aside."""
    FAILED = 3
    """The tier failed: an error of its own, or no answer."""


@dataclass(frozen=True, slots=True)
class OpenTiers:
    """What the engine tells all ranks once it knows what they loaded; everything else about the
    tiers is in the configuration.
    """

    cache: str
    """The cache identity of all ranks together, as 64 hex digits."""
    ram_slots: int
    """Entries of the RAM tier on every rank, each a block of every group."""
    flush_s: float
    """Seconds that stores under way get when the executor is closed."""


@dataclass(slots=True)
class Transfer:
    """Names at most as many blocks, chunks or ids as the pools have blocks: so much has room in a
    message.
    """

    id: int
    """Counts up from 1. That of a CANCEL means nothing."""
    kind: TransferKind
    tier: int = RAM
    blocks: array[int] = field(default_factory=lambda: array("i"))
    """Blocks of the pools, group after group, as many of each, in the order of their tokens. LOAD
    and STORE: those of one chunk (RAM: of any number). LOAD: NO_BLOCK where a group needs none.
    """
    slots: array[int] = field(default_factory=lambda: array("i"))
    """RAM: the slot that the blocks of all groups at one place are loaded from or stored to."""
    keys: bytes = b""
    """Chunk tiers: 32 bytes for each chunk, the digest of its last block. LOAD and STORE
    have one, REMOVE at least one; CLEAR has a group of 4 bytes, or none.
    """
    counts: array[int] = field(default_factory=lambda: array("i"))
    """PROBE: blocks of each chunk."""
    ids: array[int] = field(default_factory=lambda: array("q"))
    """CANCEL only."""
    parent: bytes = b""
    """STORE to chunk tiers: digest of the block before the chunk, if there is one."""


@dataclass(slots=True)
class TransferResult:
    """A rank's answer, or that of all ranks together."""

    id: int
    done: bool
    """LOAD, STORE, REMOVE, CLEAR: whether all of it was."""
    found: bytes = b""
    """PROBE: a byte for each chunk, 1 where the tier has all parts of it."""
    bytes: int = 0
    seconds: float = 0.0
    """Time of the movement, without that in the queue."""
    waited: float = 0.0
    """In the queue."""
    error: str = ""
    """Why not, when not done; empty for what was only not there, or was cancelled."""
    fault: Fault = Fault.NONE
    """What `error` says of the tier."""
    left: builtins.bytes = b""
    """Digests of chunks that have left the tier, which no answer has named before."""
