"""Write-behind: stores computed blocks in the background. Blocks are stored in RAM when they are
published, and chunks in the other tiers when these have capacity. Under overload, stores are
dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from penstock.core.transfer import RAM, TransferKind, TransferResult
from penstock.kv.tiers.contract import Blocks
from penstock.kv.tiers.transfers import Done, TierContext

IN_FLIGHT = 2
"""Maximum number of stores in flight for each tier that stores chunks."""
POOL_SHARE = 4
"""Stores in flight hold at most 1 / POOL_SHARE of a pool's blocks; a single store may hold more."""
MOST_KNOWN = 1 << 18
"""Maximum number of chunks for each tier whose presence or absence the engine remembers."""
MOST_QUEUED = 4096
"""Maximum number of chunks queued for each tier. Beyond it, the oldest are dropped."""


class ChunkStore(NamedTuple):
    """A chunk to be stored, identified by the digests of its blocks. If the pool evicts one of them
    before the store starts, the store is dropped.

    Blocks that have slid out of a sequence's window keep their digests, so they can still be
    stored. They are evicted only when no block without a digest is free.
    """

    tier: int
    digests: tuple[bytes, ...]
    parent: bytes
    """Digest of the preceding block; empty for the first block."""

    @property
    def key(self) -> bytes:
        return self.digests[-1]


class WriteBehind:
    """Stores of all tiers: queues, known chunks and stores in flight."""

    def __init__(self, common: TierContext) -> None:
        self._pools, self._transfers, self._index = common.pools, common.transfers, common.index
        self._rates, self._stats = common.rates, common.stats
        self._per_chunk = common.shape.per_chunk
        tiers = self._stats.tiers
        self._queues: list[deque[ChunkStore]] = [deque() for _ in tiers[1:]]
        self._known: list[OrderedDict[bytes, bool]] = [OrderedDict() for _ in tiers[1:]]
        """True if the tier has the chunk. False while the chunk's store is queued or in flight."""
        self._events = common.events
        self._transfers.on_left = self.forget
        self._storing = [0] * len(tiers)
        self._held = 0
        self.offloading = 0
        """Number of blocks of preempted sequences whose stores in RAM are in flight."""

    def __bool__(self) -> bool:
        return any(self._queues)

    def published(self, digests: Sequence[bytes], first: int, end: int) -> None:
        """Queue the stores of the full chunks that end within blocks first .. end - 1 of a
        sequence.
        """
        size = self._per_chunk
        for chunk in range(first // size, end // size):
            self._add(digests, chunk * size, (chunk + 1) * size)

    def tail(self, digests: Sequence[bytes], end: int) -> None:
        """Queue the store of the tail: the blocks behind the last full chunk of a sequence, or
        prompt, that has `end` blocks.
        """
        start = end // self._per_chunk * self._per_chunk
        if start < end:
            self._add(digests, start, end)

    def _add(self, digests: Sequence[bytes], first: int, end: int) -> None:
        parent = digests[first - 1] if first else b""
        for tier, (queue, known) in enumerate(zip(self._queues, self._known, strict=True), start=1):
            if (held := known.get(digests[end - 1])) is not None:
                # The chunk is known. If the tier has it, its event can be sent now, because its
                # blocks are in the pool.
                self._report(tier, digests[end - 1], digests[first:end] if held else ())
                continue
            store = ChunkStore(tier, tuple(digests[first:end]), parent)
            self.know(tier, store.key, held=False)
            if len(queue) >= MOST_QUEUED:
                self._drop(queue.popleft())
            queue.append(store)

    def _drop(self, store: ChunkStore) -> None:
        self.forget(store.tier, store.key)
        self._stats.tiers[store.tier].dropped_stores += 1

    # Presence -------------------------------------------------------------------------------------

    def know(self, tier: int, key: bytes, held: bool = True) -> None:
        """Remember that the tier has the chunk or, if `held` is False, that the chunk's store is
        queued or in flight.
        """
        known = self._known[tier - 1]
        known[key] = held
        known.move_to_end(key)
        if len(known) > MOST_KNOWN:
            self.forget(tier, next(iter(known)))

    def forget(self, tier: int, key: bytes) -> None:
        if self._known[tier - 1].pop(key, False) and self._events is not None:
            self._events.tier_removed(tier, key)

    def _report(self, tier: int, key: bytes, digests: Sequence[bytes]) -> None:
        """Emit an event that the tier holds chunk `key` with these blocks, if there are any."""
        if digests and self._events is not None:
            self._events.tier_stored(tier, self._stats.tiers[tier].kind, key, digests)

    def _report_left(self) -> None:
        """Emit events for the blocks that the RAM index has evicted since the last call."""
        if self._index is None or self._events is None:
            return
        for digest in self._index.take_left():
            self._events.tier_removed(RAM, digest)

    def remove(self, digests: list[bytes]) -> int:
        """Remove blocks from all tiers, with the chunks that end with one of them. Returns the
        number of blocks removed from RAM.
        """
        for tier in range(1, len(self._stats.tiers)):
            for key in digests:
                self.forget(tier, key)
        self._forget_chunks(TransferKind.REMOVE, b"".join(digests))
        count = self._index.remove(digests) if self._index is not None else 0
        self._report_left()
        return count

    def clear(self, group: bytes = b"") -> int:
        """Remove everything, or the digests that begin with `group` (a salt group), from all tiers;
        returns the number of blocks removed from RAM.
        """
        queues = zip(self._queues, self._known, strict=True)
        for tier, (queue, known) in enumerate(queues, start=1):
            waiting = [store for store in queue if not store.key.startswith(group)]
            queue.clear()
            queue.extend(waiting)
            for key in [key for key in known if key.startswith(group)]:
                self.forget(tier, key)
        self._forget_chunks(TransferKind.CLEAR, group)
        count = self._index.clear(group or None) if self._index is not None else 0
        self._report_left()
        return count

    def _forget_chunks(self, kind: TransferKind, keys: bytes) -> None:
        if self._queues:
            # The tier itself counts a failed removal.
            self._transfers.begin(kind, RAM, lambda _: None, keys=keys)

    # Stores ---------------------------------------------------------------------------------------

    def to_ram(
        self, digests: Sequence[bytes], first: int, blocks: Blocks, awaited: bool = False
    ) -> None:
        """Store `blocks`, the blocks of a sequence from entry `first` on, in RAM if the RAM index
        admits them. Offloads (`awaited`) skip the admission filter.
        """
        if self._index is None:
            return
        parent = digests[first - 1] if first else None
        names = list(digests[first : first + len(blocks[0])])
        slots = self._index.admit(names, parent, awaited)
        self._report_left()
        self._stats.tiers[RAM].dropped_stores += sum(slot == -1 for slot in slots)
        chosen = [at for at, slot in enumerate(slots) if slot >= 0]
        if chosen:
            done = partial(self._in_ram, [names[at] for at in chosen], awaited)
            self.offloading += len(chosen) * awaited
            taken = [[group[at] for at in chosen] for group in blocks]
            self._begin(RAM, done, taken, slots=[slots[at] for at in chosen])

    def poll(self) -> None:
        refused = self._transfers.refused
        for tier, queue in enumerate(self._queues, start=1):
            while tier in refused and queue:
                self._drop(queue.popleft())
            while queue and self._may_store(queue[0]):
                self._store(queue.popleft())

    def _may_store(self, store: ChunkStore) -> bool:
        most = min(pool.num_blocks for pool in self._pools) // POOL_SHARE
        room = not self._held or self._held + len(store.digests) <= most
        free = self._storing[store.tier] < IN_FLIGHT and self._transfers.admits(store.tier)
        return room and free

    def _store(self, store: ChunkStore) -> None:
        blocks = [[pool.find(digest) for digest in store.digests] for pool in self._pools]
        if min(map(min, blocks)) < 0:
            self._drop(store)
            return
        done = partial(self._stored, store)
        self._begin(store.tier, done, blocks, keys=store.key, parent=store.parent)

    def _begin(
        self,
        tier: int,
        done: Done,
        blocks: Blocks,
        slots: Sequence[int] = (),
        keys: bytes = b"",
        parent: bytes = b"",
    ) -> None:
        self._storing[tier] += 1
        self._held += len(blocks[0])
        ended = partial(self._ended, tier, len(blocks[0]), done)
        self._transfers.begin(
            TransferKind.STORE, tier, ended, blocks=blocks, slots=slots, keys=keys, parent=parent
        )

    def _ended(self, tier: int, blocks: int, done: Done, moved: TransferResult) -> None:
        self._storing[tier] -= 1
        self._held -= blocks
        self._stats.tiers[tier].stored(moved)
        done(moved)

    def _in_ram(self, digests: list[bytes], awaited: bool, moved: TransferResult) -> None:
        self.offloading -= len(digests) * awaited
        if self._index is None:
            return
        if not moved.done:
            self._index.abandon(digests)
            return
        self._index.commit(digests)
        for digest in digests:
            self._report(RAM, digest, (digest,))
        self._report_left()

    def _stored(self, store: ChunkStore, moved: TransferResult) -> None:
        if moved.done:
            self._rates.stored(store.tier, moved.bytes, moved.seconds)
            if store.key in self._known[store.tier - 1]:
                self.know(store.tier, store.key)
                self._report(store.tier, store.key, store.digests)
        else:
            self.forget(store.tier, store.key)
