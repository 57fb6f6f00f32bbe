"""Which parts of a prefix lie in which tier, cut into what is moved at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock.core.transfer import RAM

RAM_PIECE = 32
"""Blocks of RAM that are moved at once."""

Chunk = tuple[bytes, int]
"""Digest of the last block, number of blocks."""


class State(Enum):
    WAITING = 0
    ISSUED = 1
    LOADED = 2


@dataclass(slots=True, eq=False)
class Piece:
    """Blocks first .. end - 1 of a sequence, to be loaded by one transfer."""

    tier: int
    first: int
    end: int
    slots: list[int] = field(default_factory=list)
    """RAM."""
    key: bytes = b""
    """Tiers that go by name."""
    awaited: bool = False
    """Computing stops here until it is there. Else, what has not begun when computing comes is
    computed.
    """
    state: State = State.WAITING
    id: int = 0
    """Of its transfer, once issued."""
    overdue: float = 0.0
    """When it counts as stalled, once issued."""

    @property
    def blocks(self) -> int:
        return self.end - self.first


def chunks_to_ask(digests: Sequence[bytes], first: int, per_chunk: int) -> list[Chunk]:
    """The full chunks from that of block `first` on, then what may be there of the last, longest
    first.
    """
    full = len(digests) // per_chunk
    start = first // per_chunk
    whole = [(digests[(at + 1) * per_chunk - 1], per_chunk) for at in range(start, full)]
    return whole + parts_to_ask(digests, full, per_chunk)


def parts_to_ask(digests: Sequence[bytes], chunk: int, per_chunk: int) -> list[Chunk]:
    """Shorter ends of the `chunk`-th chunk, longest first."""
    start = chunk * per_chunk
    most = min(per_chunk - 1, len(digests) - start)
    return [(digests[start + blocks - 1], blocks) for blocks in range(most, 0, -1)]


def reach(
    digests: Sequence[bytes],
    hits: int,
    per_chunk: int,
    slots: list[int],
    named: Sequence[set[Chunk]],
) -> list[Piece]:
    """The longest way from block `hits` on without a gap: what RAM has of it, in `slots`, then
    chunk by chunk the first named tier that has one.

    A chunk is moved as a whole, so one that begins before what is there already replaces a part of
    that: the first piece may begin before `hits`.
    """
    pieces = _ram_pieces(hits, slots)
    at = hits + len(slots)
    while at < len(digests) and (piece := _chunk_piece(digests, at, per_chunk, named)):
        _cut(pieces, piece.first)
        pieces.append(piece)
        at = piece.end
    return pieces


def _ram_pieces(first: int, slots: list[int]) -> list[Piece]:
    runs = [slots[at : at + RAM_PIECE] for at in range(0, len(slots), RAM_PIECE)]
    starts = range(first, first + len(slots), RAM_PIECE)
    return [
        Piece(RAM, start, start + len(run), run) for start, run in zip(starts, runs, strict=True)
    ]


def _chunk_piece(
    digests: Sequence[bytes], at: int, per_chunk: int, named: Sequence[set[Chunk]]
) -> Piece | None:
    start = at // per_chunk * per_chunk
    for blocks in range(min(per_chunk, len(digests) - start), at - start, -1):
        chunk = digests[start + blocks - 1], blocks
        for tier, found in enumerate(named, start=1):
            if chunk in found:
                return Piece(tier, start, start + blocks, key=chunk[0])
    return None


def _cut(pieces: list[Piece], end: int) -> None:
    """Leave what lies before block `end`."""
    while pieces and pieces[-1].end > end:
        last = pieces[-1]
        if last.first >= end or last.tier != RAM:
            pieces.pop()
        else:
            last.end = end
            del last.slots[last.blocks :]
