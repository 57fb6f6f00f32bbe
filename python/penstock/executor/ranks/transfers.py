"""Transfers and their results as bytes (`crates/base/wire`), and the messages that open and close
the tiers of a rank.

The first byte of a message to a rank is its kind (`penstock.executor.ranks.messages`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from penstock import _native
from penstock.core.errors import CodecError
from penstock.core.transfer import OpenTiers, Transfer, TransferResult

TRANSFER = b"T"
OPEN = b"O"
END = b"E"


def encode_transfer(transfer: Transfer, after: int) -> bytes:
    """`after` counts the plans, from the opening of the tiers on, that a rank has to have computed
    before: those whose results the engine had. Ranks other than the reader may be a little behind.
    """
    return TRANSFER + _native.encode_transfer(transfer, after)


def is_transfer(message: bytes) -> bool:
    """Whether a message to a rank is a transfer, by its first byte."""
    return message.startswith(TRANSFER)


def decode_transfer(data: bytes) -> tuple[Transfer, int]:
    """With the plans before it; CodecError unless `data` is one transfer and nothing else."""
    if not is_transfer(data):
        raise CodecError(f"a transfer begins with {TRANSFER!r}, not {data[:1]!r}")
    return _native.decode_transfer(data[len(TRANSFER) :])


def transfer_bytes(blocks: int) -> int:
    """The largest transfer where the pool has so many blocks."""
    return len(TRANSFER) + _native.transfer_bytes(blocks)


def encode_moved(batch: Iterable[TransferResult], capacity: int) -> list[bytes]:
    """As many messages of at most `capacity` bytes as it takes; errors are cut to 1 KiB."""
    return _native.encode_transfer_results(batch, capacity)


def decode_moved(data: bytes) -> tuple[TransferResult, ...]:
    """CodecError unless `data` is whole results and nothing else."""
    return tuple(_native.decode_transfer_results(data))


def encode_open(tiers: OpenTiers) -> bytes:
    return OPEN + json.dumps(asdict(tiers)).encode()


def decode_open(data: bytes) -> OpenTiers:
    """CodecError for malformed bytes."""
    try:
        fields = json.loads(data[len(OPEN) :])
        return OpenTiers(str(fields["cache"]), int(fields["ram_slots"]), float(fields["flush_s"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"malformed tiers: {error}") from error
