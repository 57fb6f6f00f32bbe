"""The tiers behind the pool, as the scheduler sees them: nothing here waits, and nothing here moves
bytes.

ask          -> Fetch    which chunks of a prompt do tiers have; they answer later
settled                  whether waiting for these answers is over
choose, begin            load what is there sooner than computed, into the blocks of the sequence
advance                  pass what was loaded
leave                    the sequence is gone; its loads end by themselves
published, ended, park   write-behind
turn                     once for each round of the engine: what has ended, what can begin
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from penstock.core import StepPlan, TierKind, TierStats, TierTokens
from penstock.core.transfer import RAM, Moved, TransferKind
from penstock.kv.pool import BlockPool
from penstock.kv_tiers.choose import choose
from penstock.kv_tiers.contract import Carrier, Index
from penstock.kv_tiers.counts import Counts
from penstock.kv_tiers.fetch import Fetch
from penstock.kv_tiers.finding import Finder
from penstock.kv_tiers.loading import Loader
from penstock.kv_tiers.none import NO_PINS
from penstock.kv_tiers.pieces import reach
from penstock.kv_tiers.ram import RamReport, ram_report
from penstock.kv_tiers.rates import Rates
from penstock.kv_tiers.shape import Shape
from penstock.kv_tiers.stores import Stores
from penstock.kv_tiers.storing import Storer
from penstock.kv_tiers.transfers import Transfers
from penstock.kv_tiers.trials import Trials

PROBE_PATIENCE = 0.1
"""Seconds that a request waits for what tiers say of its prompt. No answer counts as one that took
so long.
"""
PROBE_JITTER, PROBE_LEAST = 8.0, 0.05
"""Times as long as answers usually take, and seconds: what is waited for tiers that are quick to
say it, for one of them may have stopped.
"""
PROBE_SHARE = 0.05
"""Of what computing takes: how long it waits for tiers that usually take longer than that to say
it.
"""


class TierCache:
    """`index` is None without a RAM tier. `stats` has a place for it all the same."""

    present = True

    def __init__(
        self,
        pool: BlockPool,
        carrier: Carrier,
        index: Index | None,
        shape: Shape,
        stats: Sequence[TierStats],
        clock: Callable[[], float],
    ) -> None:
        self.rates = rates = Rates(each.kind for each in stats)
        self.counts = counts = Counts(stats)
        self._shape = shape
        self._index = index
        self._clock = clock
        self._transfers = transfers = Transfers(pool, carrier)
        self._stores = stores = Stores(stats, shape.per_chunk)
        self._finder = Finder(transfers, index, stores, rates, counts, shape.per_chunk)
        self._loader = Loader(pool, transfers, index, stores, rates, counts, shape, clock)
        self._trials = Trials(pool, transfers, rates, counts, clock)
        self._storer = Storer(pool, transfers, index, stores, rates, counts)

    @property
    def busy(self) -> bool:
        """Whether something is under way, or waits for its turn."""
        return bool(self._transfers) or bool(self._stores)

    @property
    def look(self) -> float:
        """Seconds until the next turn, while there is nothing else to do."""
        return self._transfers.look if self.busy else math.inf

    def turn(self) -> None:
        self._transfers.take_in()
        self._loader.turn()
        self._storer.turn()

    def tables(self) -> Iterator[array[int]]:
        """Blocks that transfers hold, for the audit of the pool."""
        return self._transfers.tables()

    # Loading --------------------------------------------------------------------------------------

    def ask(self, digests: list[bytes], hits: int) -> Fetch:
        """`digests` name the full blocks of a prompt, of which the pool has the first `hits`."""
        fetch = Fetch(
            digests, self._shape.block_size, self._clock() + self._patience(hits, len(digests))
        )
        fetch.found = [set() for _ in self.counts.tiers[1:]]
        self._finder.ask(fetch, hits)
        return fetch

    def _patience(self, first: int, end: int) -> float:
        """Seconds that the answers to probes of these blocks are worth."""
        size, rates = self._shape.block_size, self.rates
        worth = PROBE_SHARE * rates.compute_seconds(first * size, (end - first) * size)
        usual = rates.probe_seconds
        if not usual:
            return PROBE_PATIENCE
        quick = max(PROBE_JITTER * usual, PROBE_LEAST) if usual <= worth else 0.0
        return min(PROBE_PATIENCE, max(worth, quick))

    def settled(self, fetch: Fetch) -> bool:
        return not fetch.probes or self._clock() >= fetch.overdue

    def choose(self, fetch: Fetch, hits: int) -> int:
        """Decide what to load behind the `hits` blocks of the pool; how many of those are still
        wanted.
        """
        shape = self._shape
        slots = self._finder.in_ram(fetch, hits)
        pieces = reach(fetch.digests, hits, shape.per_chunk, slots, fetch.found)
        fetch.there = pieces
        fetch.choose(choose(pieces, self._loader.backlog, self.rates, shape))
        wanted = min(hits, fetch.pieces[0].first) if fetch.pieces else hits
        fetch.planned = wanted * shape.block_size
        return wanted

    def begin(self, fetch: Fetch, blocks: array[int]) -> None:
        """The sequence has its blocks; those of the chosen pieces are filled from the tiers."""
        for tier in fetch.probes:
            self.rates.probed(tier, PROBE_PATIENCE)
        self._finder.hold_only_pieces(fetch)
        self.counts.decided(fetch)
        if fetch.pieces:
            fetch.blocks = blocks
            self._loader.begin(fetch)
        self._trials.consider(fetch)

    def computing(self, fetch: Fetch, end: int) -> None:
        """Tokens up to `end` of the sequence are in a plan."""
        before = fetch.pieces
        fetch.computing(end)
        self._loader.drop(piece for piece in before if piece not in fetch.pieces)

    def advance(self, fetch: Fetch, num_computed: int, known: int) -> int:
        """Computed tokens after passing what was loaded."""
        before = Counter(fetch.tokens)
        num_computed = fetch.advance(num_computed, known)
        for tier, tokens in (fetch.tokens - before).items():
            self.counts.tiers[tier].hit_tokens += tokens
        return num_computed

    def tokens(self, fetch: Fetch) -> TierTokens:
        """Of the sequence, by the kind of tier."""
        by_kind: Counter[TierKind] = Counter()
        for tier, tokens in fetch.tokens.items():
            by_kind[self.counts.tiers[tier].kind] += tokens
        return TierTokens(by_kind[TierKind.RAM], by_kind[TierKind.DISK], by_kind[TierKind.REMOTE])

    def leave(self, fetch: Fetch) -> None:
        """Nobody waits for it any more. What is under way ends by itself, its blocks are held until
        then.
        """
        self._finder.hold_only_pieces(fetch)
        self._loader.leave(fetch)

    # Storing --------------------------------------------------------------------------------------

    def published(
        self, digests: list[bytes], first: int, blocks: array[int], prompt_blocks: int
    ) -> None:
        """Blocks of a sequence from `first` on are computed and named."""
        end = first + len(blocks)
        self._storer.to_ram(digests, first, blocks)
        self._stores.published(digests, first, end)
        if end == prompt_blocks:
            self._stores.tail(digests, end)

    def park(self, digests: list[bytes], blocks: Sequence[int]) -> None:
        """A sequence is preempted and will be back: RAM takes its `blocks` whatever they are worth
        beside the others. They are not free before they are there.
        """
        self._storer.to_ram(digests, 0, blocks, awaited=True)

    @property
    def parking(self) -> bool:
        """Whether blocks of the pool become free as soon as RAM has what is in them."""
        return self._storer.parking > 0

    def ended(self, digests: list[bytes], end: int) -> None:
        """A sequence ends with `end` blocks published."""
        self._stores.tail(digests, end)

    def observed(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long."""
        positions = sum(
            length * (start + length // 2)
            for start, length in zip(plan.starts, plan.lengths, strict=True)
        )
        self.rates.computed(len(plan.tokens), positions, seconds)

    # Administration -------------------------------------------------------------------------------

    def ram(self) -> RamReport:
        """What the RAM tier holds, and what more of it would save."""
        return ram_report(self._index, self._shape.block_bytes)

    def remove(self, digests: list[bytes]) -> int:
        """Forget these blocks and the chunks that they end, everywhere; how many RAM had."""
        self._stores.forget_all(digests)
        self._forget_named(TransferKind.REMOVE, b"".join(digests))
        return self._index.remove(digests) if self._index is not None else 0

    def clear(self, group: bytes = b"") -> int:
        """Forget everything, or what one group left, everywhere; how many blocks RAM had."""
        self._stores.clear(group)
        self._forget_named(TransferKind.CLEAR, group)
        return self._index.clear(group or None) if self._index is not None else 0

    def pin(self, digests: list[bytes]) -> int:
        """Keep these blocks in RAM, now or once they are computed. ValueError says why not."""
        if self._index is None:
            raise ValueError(NO_PINS)
        return self._index.pin(digests)

    def unpin(self, digests: list[bytes]) -> None:
        if self._index is not None:
            self._index.unpin(digests)

    def _forget_named(self, kind: TransferKind, keys: bytes) -> None:
        if self._stores.queues:
            self._transfers.begin(kind, RAM, _ignore, keys=keys)


def _ignore(moved: Moved) -> None:
    """A tier that could not forget says so in its own counts."""
