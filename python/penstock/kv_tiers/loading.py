"""Loads: begun as tiers have time for them, given up when they stall."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from penstock.core.transfer import Moved, TransferKind
from penstock.kv.pool import BlockPool
from penstock.kv_tiers.choose import choose
from penstock.kv_tiers.contract import Index
from penstock.kv_tiers.counts import Counts
from penstock.kv_tiers.fetch import Fetch
from penstock.kv_tiers.pieces import Piece, State
from penstock.kv_tiers.rates import Rates
from penstock.kv_tiers.shape import Shape
from penstock.kv_tiers.stores import Stores
from penstock.kv_tiers.transfers import Transfers

LOADS = 6
"""Under way in a tier at most."""
STALLED, LEAST_STALL = 8.0, 0.2
"""A load counts as stalled after so many times what it should take, so many seconds, and what
computing it would have taken."""


class Loader:
    def __init__(
        self,
        pool: BlockPool,
        transfers: Transfers,
        index: Index | None,
        stores: Stores,
        rates: Rates,
        counts: Counts,
        shape: Shape,
        clock: Callable[[], float],
    ) -> None:
        self.backlog = [0] * len(counts.tiers)
        """Bytes under way in each tier."""
        self._pool = pool
        self._transfers = transfers
        self._index = index
        self._stores = stores
        self._rates = rates
        self._counts = counts
        self._shape = shape
        self._clock = clock
        self._loading = [0] * len(counts.tiers)
        self._issued: dict[Piece, Fetch] = {}
        """Under way and not given up, in the order in which they were begun."""
        self._fetches: list[Fetch] = []

    def begin(self, fetch: Fetch) -> None:
        self._fetches.append(fetch)
        self._issue()

    def leave(self, fetch: Fetch) -> None:
        if fetch in self._fetches:
            self._fetches.remove(fetch)
        self.drop(piece for piece in fetch.pieces if piece.state is State.WAITING)
        self._transfers.cancel([piece.id for piece in fetch.pieces if piece.state is State.ISSUED])
        fetch.pieces = []

    def drop(self, pieces: Iterable[Piece]) -> None:
        """These had not begun, and will not."""
        if self._index is not None:
            for piece in pieces:
                self._index.release(piece.slots)

    def turn(self) -> None:
        if self._issued:
            self._give_up_stalled()
        if self._fetches:
            self._fetches = [fetch for fetch in self._fetches if fetch.pieces or fetch.open]
            self._issue()

    def _issue(self) -> None:
        for fetch in self._fetches:
            while piece := fetch.next_waiting(self._free()):
                self._load(fetch, piece)

    def _free(self) -> set[int]:
        return {tier for tier, loading in enumerate(self._loading) if loading < LOADS}

    def _load(self, fetch: Fetch, piece: Piece) -> None:
        tier = piece.tier
        self._count(piece, 1)
        self._issued[piece] = fetch
        expected = self._rates.queue_seconds(tier, self.backlog[tier])
        piece.state = State.ISSUED
        size = fetch.block_size
        computed = self._rates.compute_seconds(piece.first * size, piece.blocks * size)
        piece.overdue = self._clock() + max(STALLED * expected, computed, LEAST_STALL)
        blocks = fetch.blocks[piece.first : piece.end]
        done = partial(self._loaded, fetch, piece)
        piece.id = self._transfers.begin(
            TransferKind.LOAD, tier, done, blocks=blocks, slots=piece.slots, keys=piece.key
        )

    def _loaded(self, fetch: Fetch, piece: Piece, moved: Moved) -> None:
        tier = piece.tier
        if self._issued.pop(piece, None):
            self._count(piece, -1)
        if self._index is not None:
            self._index.release(piece.slots)
        wanted = piece in fetch.pieces
        if wanted or moved.done or moved.error:
            self._counts.loaded(tier, moved)
        if moved.done:
            piece.state = State.LOADED
            stalled = self._rates.stalls(tier)
            self._rates.loaded(tier, moved.bytes, moved.seconds)
            for each in self._fetches:
                if stalled or each is fetch:
                    self._reconsider(each)
        elif wanted:
            fetch.pieces.remove(piece)
        if not moved.done and piece.key and (wanted or moved.error):
            self._stores.forget(tier, piece.key)

    def _count(self, piece: Piece, more: int) -> None:
        self._loading[piece.tier] += more
        self.backlog[piece.tier] += more * piece.blocks * self._shape.block_bytes

    def _give_up_stalled(self) -> None:
        """A load that does not end is left to itself, and another may have its turn; the sequence
        gets other blocks and computes.
        """
        now, pool = self._clock(), self._pool
        for piece, fetch in [each for each in self._issued.items() if now >= each[0].overdue]:
            if piece in fetch.pieces:
                if pool.available < piece.blocks:
                    continue
                fetch.pieces.remove(piece)
                for at in range(piece.first, piece.end):
                    pool.release((fetch.blocks[at],))
                    fetch.blocks[at] = pool.take()
                self._counts.failed(piece.tier)
            del self._issued[piece]
            self._count(piece, -1)
            self._give_up_waiting(piece.tier)
            self._transfers.cancel([piece.id])

    def _give_up_waiting(self, tier: int) -> None:
        """What waits for its turn in a tier that stalls may wait for ever: it is computed."""
        self._rates.stalled(tier)
        for fetch in self._fetches:
            fetch.give_up(tier)

    def _reconsider(self, fetch: Fetch) -> None:
        """A tier has answered: perhaps it is faster than it seemed when a part was to be computed,
        or is over a stall.
        """
        left = fetch.left()
        if all(piece.awaited for piece in left):
            return
        fetch.choose(choose(left, self.backlog, self._rates, self._shape))
        self.drop(piece for piece in left if piece.slots and piece not in fetch.pieces)
