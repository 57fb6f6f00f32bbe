"""Loads: begun as tiers have time for them, given up when they stall."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from penstock.core.transfer import Moved, TransferKind
from penstock.kv.pool import BlockPool
from penstock.kv.tiers.contract import Index
from penstock.kv.tiers.counts import Counts
from penstock.kv.tiers.fetch import Fetch
from penstock.kv.tiers.pieces import Piece, State
from penstock.kv.tiers.rates import Rates
from penstock.kv.tiers.stores import Stores
from penstock.kv.tiers.transfers import Transfers

LOADS = 6
"""Under way in a tier at most."""
STALLED, LEAST_STALL = 8.0, 0.2
"""A load counts as stalled after so many times what it should take, so many seconds, and what computing it
would have taken."""


class Loader:
    def __init__(
        self,
        pool: BlockPool,
        transfers: Transfers,
        index: Index | None,
        stores: Stores,
        rates: Rates,
        counts: Counts,
        block_bytes: int,
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
        self._block_bytes = block_bytes
        self._clock = clock
        self._loading = [0] * len(counts.tiers)
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
        if self._fetches:
            self._give_up_stalled()
            self._fetches = [fetch for fetch in self._fetches if fetch.pieces]
            self._issue()

    def _issue(self) -> None:
        for fetch in self._fetches:
            while (piece := fetch.next_waiting()) and self._loading[piece.tier] < LOADS:
                self._load(fetch, piece)

    def _load(self, fetch: Fetch, piece: Piece) -> None:
        tier = piece.tier
        self.backlog[tier] += piece.blocks * self._block_bytes
        self._loading[tier] += 1
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
        self._loading[tier] -= 1
        self.backlog[tier] -= piece.blocks * self._block_bytes
        if self._index is not None:
            self._index.release(piece.slots)
        wanted = piece in fetch.pieces
        if wanted or moved.done or moved.error:
            self._counts.loaded(tier, moved)
        if moved.done:
            self._rates.loaded(tier, moved.bytes, moved.seconds)
            piece.state = State.LOADED
        elif wanted:
            fetch.pieces.remove(piece)
        if not moved.done and piece.key and (wanted or moved.error):
            self._stores.forget(tier, piece.key)

    def _give_up_stalled(self) -> None:
        """A load that does not end is left to itself; the sequence gets other blocks and computes."""
        now, pool = self._clock(), self._pool
        for fetch in self._fetches:
            for piece in [p for p in fetch.pieces if p.state is State.ISSUED and now >= p.overdue]:
                if pool.available < piece.blocks:
                    return
                fetch.pieces.remove(piece)
                # Those that wait for their turn behind it are not waited for either.
                fetch.patient = False
                self._counts.failed(piece.tier)
                for at in range(piece.first, piece.end):
                    pool.release((fetch.blocks[at],))
                    fetch.blocks[at] = pool.take()
