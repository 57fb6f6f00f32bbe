"""What the tiers did since the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.core import Decisions, TierStats
from penstock.core.transfer import Moved
from penstock.kv_tiers.fetch import Fetch


@dataclass(slots=True)
class Counts:
    """`tiers` by the numbers of transfers: RAM, there or not, then those that go by name."""

    tiers: Sequence[TierStats]
    decisions: Decisions = field(default_factory=Decisions)
    lookup_tokens: int = 0

    def decided(self, fetch: Fetch) -> None:
        if not fetch.pieces:
            self.decisions.compute += bool(fetch.there)
        elif all(piece.awaited for piece in fetch.pieces) and len(fetch.pieces) == len(fetch.there):
            self.decisions.load += 1
        else:
            self.decisions.both += 1

    def probed(self, tier: int, hits: int, misses: int) -> None:
        stats = self.tiers[tier]
        stats.hits += hits
        stats.misses += misses

    def loaded(self, tier: int, moved: Moved) -> None:
        stats = self.tiers[tier]
        if moved.done:
            stats.loaded_bytes += moved.bytes
            stats.load.observe(moved.seconds)
        elif moved.error:
            stats.errors += 1
        else:
            stats.misses += 1

    def stored(self, tier: int, moved: Moved) -> None:
        stats = self.tiers[tier]
        if moved.done:
            stats.stored_bytes += moved.bytes
            stats.store.observe(moved.seconds)
        elif moved.full:
            stats.dropped_stores += 1
        elif moved.error:
            stats.errors += 1

    def failed(self, tier: int) -> None:
        """A probe was not answered, or a load no longer waited for."""
        self.tiers[tier].errors += 1

    def dropped(self, tier: int, blocks: int = 1) -> None:
        self.tiers[tier].dropped_stores += blocks
