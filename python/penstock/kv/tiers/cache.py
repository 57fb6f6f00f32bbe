"""Facade of the KV tiers: combines lookup, loads and write-behind for the scheduler."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.kv.events import KvEvents
from penstock.kv.pool import BlockPool
from penstock.kv.tiers.breaker import CircuitBreaker
from penstock.kv.tiers.contract import Blocks, Shape, TransferExecutor
from penstock.kv.tiers.load import Loader, PrefixLoad
from penstock.kv.tiers.lookup import TierLookup
from penstock.kv.tiers.plan import cover
from penstock.kv.tiers.rates import Rates
from penstock.kv.tiers.stats import Stats
from penstock.kv.tiers.tiers import Tiers
from penstock.kv.tiers.transfers import TierContext, Transfers
from penstock.kv.tiers.write_behind import WriteBehind

if TYPE_CHECKING:
    from penstock._native import TierIndex

PROBE_PATIENCE = 0.1
"""Maximum seconds that a request waits for probes (queries for the chunks that a tier has). A
tier without an answer by then is recorded as having taken this long.
"""
PROBE_JITTER, PROBE_LEAST = 8.0, 0.05
"""Wait limits for tiers that usually answer quickly: PROBE_JITTER times their usual answer time,
and at least PROBE_LEAST seconds. A longer wait is useless, because the tier may have stalled.
"""
PROBE_SHARE = 0.05
"""Wait limit for slower tiers, as a share of the time to compute the blocks in question."""


class TierCache(Tiers):
    """`pools` has one pool for each KV group. `index` is None without a RAM tier; `stats` has
    counters for the RAM tier in any case. `breakers` has one for each tier that stores chunks, in
    order of configuration.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        executor: TransferExecutor,
        index: TierIndex | None,
        shape: Shape,
        stats: Stats,
        rates: Rates,
        breakers: Sequence[CircuitBreaker],
        clock: Callable[[], float],
        events: KvEvents | None = None,
    ) -> None:
        self._shape = shape
        self._clock = clock
        self._stats = stats
        self._rates = rates
        self._transfers = transfers = Transfers(pools, executor, breakers, clock)
        common = TierContext(pools, transfers, index, shape, rates, stats, clock, events)
        self.write_behind = WriteBehind(common)
        self._lookup = TierLookup(common, self.write_behind)
        self._loader = Loader(common, self.write_behind)

    @property
    def busy(self) -> bool:
        return bool(self._transfers) or bool(self.write_behind)

    @property
    def offloading(self) -> bool:
        return self.write_behind.offloading > 0

    @property
    def stalled_for(self) -> float:
        return self._transfers.stalled_for

    @property
    def next_poll(self) -> float:
        return self._transfers.next_poll if self.busy else math.inf

    def poll(self) -> None:
        self._transfers.poll()
        self._loader.poll()
        self.write_behind.poll()

    def tables(self) -> Iterator[tuple[int, Sequence[int]]]:
        return self._transfers.tables()

    def lookup(self, load: PrefixLoad, digests: list[bytes], hits: int) -> int | None:
        shape = self._shape
        if load.barred:
            return hits
        if not load.stats:
            load.whole = shape.window_bytes > 0
            load.digests, load.block_size = digests, shape.block_size
            load.stats = self._stats.tiers
            load.found = [set() for _ in load.stats[1:]]
            load.deadline = self._clock() + self._patience(hits, len(digests))
            self._lookup.probe(load, hits)
        if load.probes and self._clock() < load.deadline:
            return None
        slots = self._lookup.in_ram(load, hits)
        load.available = cover(load.digests, hits, shape.per_chunk, slots, load.found)
        load.choose(self._loader.plan(load.available, load.whole))
        wanted = min(hits, load.segments[0].first) if load.segments else hits
        load.planned = wanted * shape.block_size
        return wanted

    def _patience(self, first: int, end: int) -> float:
        """Maximum seconds that a request waits for probes of its blocks first .. end - 1."""
        size, rates = self._shape.block_size, self._rates
        worth = PROBE_SHARE * rates.compute_seconds(first * size, (end - first) * size)
        usual = rates.probe_seconds
        if not usual:
            return PROBE_PATIENCE
        quick = max(PROBE_JITTER * usual, PROBE_LEAST) if usual <= worth else 0.0
        return min(PROBE_PATIENCE, max(worth, quick))

    def start(self, load: PrefixLoad, blocks: Sequence[array[int]]) -> None:
        for tier in load.probes:
            self._rates.probed(tier, PROBE_PATIENCE)
        self._lookup.hold_only_segments(load)
        load.blocks = blocks
        self._loader.begin(load)

    def limit(self, load: PrefixLoad, end: int) -> int:
        end = load.limit(end)
        if load.available:
            self._loader.drop(load.computing(end))
        return end

    def published(self, digests: list[bytes], end: int, blocks: Blocks, prompt_blocks: int) -> None:
        first = end - len(blocks[0])
        self.write_behind.to_ram(digests, first, blocks)
        self.write_behind.published(digests, first, end)
        if end == prompt_blocks:
            self.write_behind.tail(digests, end)

    def released(
        self, load: PrefixLoad, digests: list[bytes], end: int, offload: Blocks = ()
    ) -> None:
        if offload:
            self.write_behind.to_ram(digests, end - len(offload[0]), offload, awaited=True)
        self.write_behind.tail(digests, end)
        self._lookup.hold_only_segments(load)
        self._loader.end(load)
