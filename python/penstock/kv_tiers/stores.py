"""Write-behind: what was computed goes to the tiers when they have time for it, or not at all."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core import TierStats

MOST_KNOWN = 1 << 18
"""Chunks of a tier whose presence is remembered."""
MOST_QUEUED = 4096
"""Chunks that wait to be stored in a tier; more are dropped, the oldest first."""


@dataclass(frozen=True, slots=True)
class ChunkStore:
    """A chunk to be stored, by the names of its blocks: they are found in its turn, if they still
    are.
    """

    tier: int
    digests: tuple[bytes, ...]
    first: int
    """Block of the sequence that the chunk begins with."""
    parent: bytes
    """Name of the block before; empty: there is none."""

    @property
    def key(self) -> bytes:
        return self.digests[-1]


class Stores:
    """Chunks that wait for each named tier, and what the tiers are known to have."""

    def __init__(self, stats: Sequence[TierStats], per_chunk: int) -> None:
        self._stats = stats
        self._per_chunk = per_chunk
        self.queues: list[deque[ChunkStore]] = [deque() for _ in stats[1:]]
        self._known: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in stats[1:]]

    def __bool__(self) -> bool:
        return any(self.queues)

    def published(self, digests: Sequence[bytes], first: int, end: int) -> None:
        """Blocks first .. end - 1 of a sequence are computed and named: chunks that this completes."""
        size = self._per_chunk
        for chunk in range(first // size, end // size):
            self._add(digests, chunk * size, (chunk + 1) * size)

    def tail(self, digests: Sequence[bytes], end: int) -> None:
        """A sequence ends after `end` blocks, or its prompt does: what is left beyond full chunks."""
        start = end // self._per_chunk * self._per_chunk
        if start < end:
            self._add(digests, start, end)

    def _add(self, digests: Sequence[bytes], first: int, end: int) -> None:
        parent = digests[first - 1] if first else b""
        for tier, (queue, known) in enumerate(zip(self.queues, self._known, strict=True), start=1):
            if digests[end - 1] in known:
                continue
            store = ChunkStore(tier, tuple(digests[first:end]), first, parent)
            self.know(tier, store.key)
            if len(queue) >= MOST_QUEUED:
                self.forget(tier, queue.popleft().key)
                self._stats[tier].dropped_stores += 1
            queue.append(store)

    def know(self, tier: int, key: bytes) -> None:
        """The tier has this chunk, or will."""
        known = self._known[tier - 1]
        known[key] = None
        known.move_to_end(key)
        if len(known) > MOST_KNOWN:
            known.popitem(last=False)

    def forget(self, tier: int, key: bytes) -> None:
        self._known[tier - 1].pop(key, None)

    def forget_all(self, keys: Sequence[bytes]) -> None:
        for known in self._known:
            for key in keys:
                known.pop(key, None)

    def clear(self, group: bytes = b"") -> None:
        """Everything, or what one group has: its names begin with that."""
        for queue, known in zip(self.queues, self._known, strict=True):
            waiting = [store for store in queue if not store.key.startswith(group)]
            queue.clear()
            queue.extend(waiting)
            for key in [key for key in known if key.startswith(group)]:
                del known[key]
