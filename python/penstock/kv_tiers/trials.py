"""A tier that was slow once is measured again: else nothing would be loaded from it ever after, and
nobody would learn that it has recovered. A trial is a load that no request waits for, into blocks
that nobody needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from penstock.core.transfer import RAM, Moved, TransferKind
from penstock.kv.pool import BlockPool
from penstock.kv_tiers.counts import Counts
from penstock.kv_tiers.fetch import Fetch
from penstock.kv_tiers.pieces import Piece
from penstock.kv_tiers.rates import Rates
from penstock.kv_tiers.transfers import Transfers

INTERVAL = 1.0
"""Seconds between the end of a trial and the next one of the tier, at least."""
SHARE = 20.0
"""Times as long as a trial took, at least: what it takes from the tier's other work is a twentieth.
"""
LONGEST = 60.0
"""Seconds after which a trial that has not ended is not waited for."""
SPARE = 4
"""A trial takes no blocks unless so many times as many are free."""


class Trials:
    def __init__(
        self,
        pool: BlockPool,
        transfers: Transfers,
        rates: Rates,
        counts: Counts,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._transfers = transfers
        self._rates = rates
        self._counts = counts
        self._clock = clock
        self._due = [-math.inf] * len(counts.tiers)

    def consider(self, fetch: Fetch) -> None:
        """What some tier has is computed, because the tier seems too slow. RAM does not stall."""
        used = {RAM, *(piece.tier for piece in fetch.pieces)}
        unused = next((piece for piece in reversed(fetch.there) if piece.tier not in used), None)
        if unused is not None:
            self._try(unused)

    def _try(self, piece: Piece) -> None:
        tier, pool, now = piece.tier, self._pool, self._clock()
        if now < self._due[tier] or pool.available < SPARE * piece.blocks:
            return
        self._due[tier] = now + LONGEST
        blocks = [pool.take() for _ in range(piece.blocks)]
        done = partial(self._done, tier, now)
        self._transfers.begin(TransferKind.LOAD, tier, done, blocks=blocks, keys=piece.key)
        pool.release(blocks)

    def _done(self, tier: int, began: float, moved: Moved) -> None:
        now = self._clock()
        self._due[tier] = now + max(INTERVAL, SHARE * (now - began))
        self._counts.loaded(tier, moved)
        if moved.done:
            self._rates.tried(tier, moved.bytes, moved.seconds)
