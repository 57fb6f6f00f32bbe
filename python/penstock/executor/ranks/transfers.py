"""Codec of transfers and their results (`crates/base/wire`), and the messages that open and close a
rank's tiers.

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
    """Encode a transfer. `after` counts plans since the tiers were opened: the rank starts the
    transfer only after it has computed that number of plans. The engine has read the results of
    these plans from one rank; other ranks may lag a little.
    """
    return TRANSFER + _native.encode_transfer(transfer, after)


def is_transfer(message: bytes) -> bool:
    """Whether a message to a rank is a transfer, by its first byte."""
    return message.startswith(TRANSFER)


def decode_transfer(data: bytes) -> tuple[Transfer, int]:
    """A transfer and its `after`. Raises CodecError unless `data` is exactly one transfer."""
    if not is_transfer(data):
        raise CodecError(f"a transfer begins with {TRANSFER!r}, not {data[:1]!r}")
    return _native.decode_transfer(data[len(TRANSFER) :])


def transfer_bytes(blocks: int) -> int:
    """Maximum bytes of a transfer message for at most `blocks` blocks, counted over all KV
    groups.
    """
    return len(TRANSFER) + _native.transfer_bytes(blocks)


def encode_moved(batch: Iterable[TransferResult], capacity: int) -> list[bytes]:
    """Encode the results of transfers as messages of at most `capacity` bytes each. Error texts are
    truncated to 1 KiB.
    """
    return _native.encode_transfer_results(batch, capacity)


def decode_moved(data: bytes) -> tuple[TransferResult, ...]:
    """Decode results; raises CodecError for malformed or trailing bytes."""
    return tuple(_native.decode_transfer_results(data))


def encode_open(tiers: OpenTiers) -> bytes:
    return OPEN + json.dumps(asdict(tiers)).encode()


def decode_open(data: bytes) -> OpenTiers:
    """Decode an `OpenTiers` message; raises CodecError for malformed bytes."""
    try:
        fields = json.loads(data[len(OPEN) :])
        return OpenTiers(str(fields["cache"]), int(fields["ram_slots"]), float(fields["flush_s"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"malformed tiers: {error}") from error
