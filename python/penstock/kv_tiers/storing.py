"""Write-behind: blocks to RAM as they are named, chunks to the other tiers as these have time for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.core.transfer import RAM, Moved, TransferKind
from penstock.kv.pool import BlockPool
from penstock.kv_tiers.contract import Index
from penstock.kv_tiers.counts import Counts
from penstock.kv_tiers.rates import Rates
from penstock.kv_tiers.stores import ChunkStore, Stores
from penstock.kv_tiers.transfers import Transfers

STORES = 2
"""Under way in a tier that goes by name."""
POOL_SHARE = 4
"""A quarter of the pool's blocks at most is held by stores."""


class Storer:
    def __init__(
        self,
        pool: BlockPool,
        transfers: Transfers,
        index: Index | None,
        stores: Stores,
        rates: Rates,
        counts: Counts,
    ) -> None:
        self._pool = pool
        self._transfers = transfers
        self._index = index
        self._stores = stores
        self._rates = rates
        self._counts = counts
        self._storing = [0] * len(counts.tiers)
        self._held = 0
        self.parking = 0
        """Blocks that preempted sequences left and that are still on their way to RAM."""

    def to_ram(
        self, digests: Sequence[bytes], first: int, blocks: Sequence[int], awaited: bool = False
    ) -> None:
        """The blocks of a sequence from `first` on, as far as they are worth it; all that are
        `awaited`.
        """
        if self._index is None:
            return
        parent = digests[first - 1] if first else None
        names = list(digests[first : first + len(blocks)])
        slots = self._index.admit(names, parent, awaited)
        self._counts.dropped(RAM, sum(slot == -1 for slot in slots))
        chosen = [at for at, slot in enumerate(slots) if slot >= 0]
        if chosen:
            done = partial(self._in_ram, [names[at] for at in chosen], awaited)
            self.parking += len(chosen) * awaited
            self._begin(
                RAM, done, [blocks[at] for at in chosen], slots=[slots[at] for at in chosen]
            )

    def turn(self) -> None:
        for tier, queue in enumerate(self._stores.queues, start=1):
            while queue and self._storing[tier] < STORES and self._has_room(queue[0]):
                self._store(queue.popleft())

    def _has_room(self, store: ChunkStore) -> bool:
        return (
            not self._held or self._held + len(store.digests) <= self._pool.num_blocks // POOL_SHARE
        )

    def _store(self, store: ChunkStore) -> None:
        blocks = [self._pool.find(digest) for digest in store.digests]
        if min(blocks) < 0:
            self._stores.forget(store.tier, store.key)
            self._counts.dropped(store.tier)
            return
        done = partial(self._stored, store)
        self._begin(store.tier, done, blocks, keys=store.key, parent=store.parent)

    def _begin(
        self,
        tier: int,
        done: partial[None],
        blocks: Sequence[int],
        slots: Sequence[int] = (),
        keys: bytes = b"",
        parent: bytes = b"",
    ) -> None:
        self._storing[tier] += 1
        self._held += len(blocks)
        ended = partial(self._ended, tier, len(blocks), done)
        self._transfers.begin(
            TransferKind.STORE,
            tier,
            ended,
            blocks=blocks,
            slots=slots,
            keys=keys,
            parent=parent,
        )

    def _ended(self, tier: int, blocks: int, done: partial[None], moved: Moved) -> None:
        self._storing[tier] -= 1
        self._held -= blocks
        self._counts.stored(tier, moved)
        done(moved)

    def _in_ram(self, digests: list[bytes], awaited: bool, moved: Moved) -> None:
        self.parking -= len(digests) * awaited
        if self._index is None:
            return
        if moved.done:
            self._index.commit(digests)
        else:
            self._index.abandon(digests)

    def _stored(self, store: ChunkStore, moved: Moved) -> None:
        if moved.done:
            self._rates.stored(store.tier, moved.bytes, moved.seconds)
        else:
            self._stores.forget(store.tier, store.key)
