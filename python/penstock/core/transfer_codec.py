"""Transfers and what came of them as bytes (little-endian), by the rules of `codec`.

The first byte of a message to a rank tells what it is: `P` a plan, `T` a transfer, `O` tiers to
open, `E` their end. Of those from a rank see `answers`.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from penstock.core.codec import CodecError, Reader
from penstock.core.transfer import GROUP_BYTES, KEY_BYTES, Moved, OpenTiers, Transfer, TransferKind

_TRANSFER = struct.Struct("<4s2Q3B5Id")
"""Magic, plans before it, id, kind, tier, bytes of the parent, then how many blocks, slots, bytes
of keys, counts and ids follow; the cost.
"""
_MOVED = struct.Struct("<QBQ2d2I")
"""The fields of Moved, `done` and `full` as bits of one; of `found` and `error` the bytes that
follow.
"""
TRANSFER_MAGIC = b"TRN1"
OPEN = b"O"
END = b"E"
MOST_ERROR = 1 << 10
"""Bytes of an error that are told."""


def encode_transfer(transfer: Transfer, after: int) -> bytes:
    """`after` counts the plans, from the opening of the tiers on, that a rank has to have computed
    before: those whose results the engine knew. Other ranks than the one that gave them may be a
    little behind.
    """
    head = _TRANSFER.pack(
        TRANSFER_MAGIC,
        after,
        transfer.id,
        transfer.kind,
        transfer.tier,
        len(transfer.parent),
        len(transfer.blocks),
        len(transfer.slots),
        len(transfer.keys),
        len(transfer.counts),
        len(transfer.ids),
        transfer.cost_us,
    )
    columns = (
        transfer.blocks,
        transfer.slots,
        transfer.keys,
        transfer.counts,
        transfer.ids,
        transfer.parent,
    )
    return b"".join([head, *map(bytes, columns)])


def is_transfer(message: bytes) -> bool:
    """Whether a message to a rank is a transfer, without a look at the rest of it."""
    return message[:1] == TRANSFER_MAGIC[:1]


def decode_transfer(data: bytes) -> tuple[Transfer, int]:
    """With the plans before it; CodecError unless `data` is one transfer, whole and with nothing
    after it.
    """
    reader = Reader(data)
    magic, after, number, kind, tier, parent, blocks, slots, keys, counts, ids, cost = reader.take(
        _TRANSFER
    )
    if magic != TRANSFER_MAGIC:
        raise CodecError(f"a transfer begins with {TRANSFER_MAGIC!r}, not {magic!r}")
    try:
        transfer = Transfer(number, TransferKind(kind), tier, cost_us=cost)
    except ValueError as error:
        raise CodecError(f"a transfer of unknown kind {kind}") from error
    transfer.blocks = reader.column("i", blocks)
    transfer.slots = reader.column("i", slots)
    transfer.keys = reader.raw(keys)
    transfer.counts = reader.column("i", counts)
    transfer.ids = reader.column("q", ids)
    transfer.parent = reader.raw(parent)
    reader.end()
    _check_names(transfer)
    return transfer, after


def _check_names(transfer: Transfer) -> None:
    size = len(transfer.keys)
    if size not in (0, GROUP_BYTES) if transfer.kind is TransferKind.CLEAR else size % KEY_BYTES:
        raise CodecError(f"{transfer.kind.name} with {size} bytes of names")
    if len(transfer.parent) not in (0, KEY_BYTES):
        raise CodecError(f"a parent of {len(transfer.parent)} bytes")


def transfer_bytes(blocks: int) -> int:
    """The largest transfer where the pool has so many blocks: a chunk has at least one."""
    return _TRANSFER.size + KEY_BYTES + blocks * (KEY_BYTES + array("i").itemsize)


def encode_moved(batch: Iterable[Moved], capacity: int) -> Iterator[bytes]:
    """As many messages of at most `capacity` bytes as it takes; errors are shortened."""
    parts: list[bytes] = []
    size = 0
    for moved in batch:
        error = moved.error.encode(errors="replace")[:MOST_ERROR]
        marks = moved.done | moved.full << 1
        head = (
            moved.id,
            marks,
            moved.bytes,
            moved.seconds,
            moved.waited,
            len(moved.found),
            len(error),
        )
        part = _MOVED.pack(*head) + moved.found + error
        if parts and size + len(part) > capacity:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield b"".join(parts)


def decode_moved(data: bytes) -> tuple[Moved, ...]:
    """CodecError unless `data` is the answers of whole transfers and nothing else."""
    reader = Reader(data)
    found = []
    while reader.left():
        number, marks, size, seconds, waited, chunks, error = reader.take(_MOVED)
        moved = Moved(
            number, bool(marks & 1), reader.raw(chunks), size, seconds, waited, full=bool(marks & 2)
        )
        moved.error = reader.raw(error).decode(errors="replace")
        found.append(moved)
    return tuple(found)


def encode_open(tiers: OpenTiers) -> bytes:
    return OPEN + json.dumps(asdict(tiers)).encode()


def decode_open(data: bytes) -> OpenTiers:
    """CodecError for what is nothing of the kind."""
    try:
        fields = json.loads(data[len(OPEN) :])
        return OpenTiers(str(fields["cache"]), int(fields["ram_slots"]), float(fields["flush_s"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"malformed tiers: {error}") from error
