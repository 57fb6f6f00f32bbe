"""Loads of prefixes from tiers into the pool: started when tiers have capacity, abandoned when they
stall.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.core import TierKind, TierTokens
from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import RAM, TransferKind, TransferResult
from penstock.kv.tiers.plan import (
    Chunk,
    LoadPlan,
    LoadSegment,
    SegmentState,
    plan_load,
    plan_whole,
)
from penstock.kv.tiers.stats import TierStats
from penstock.kv.tiers.transfers import TierContext
from penstock.kv.tiers.write_behind import WriteBehind

IN_FLIGHT = 6
"""Maximum number of loads in flight for each tier."""
STALLED, LEAST_STALL = 8.0, 0.2
"""A load counts as stalled after STALLED times its expected duration. It never does before
LEAST_STALL seconds have passed, nor before its tokens could have been computed instead.
"""
MEASURE_INTERVAL = 1.0
"""Minimum seconds between two measuring loads of a tier. Their only purpose is to measure the
tier's speed.
"""
MEASURE_SHARE = 20.0
"""Minimum pause after a measuring load, as a multiple of its duration, so that measuring takes at
most about 1/20 of the time.
"""
MEASURE_SPARE = 4
"""A measuring load starts only if the pool has this many free blocks for each block to load."""


@dataclass(slots=True, eq=False)
class PrefixLoad:
    """The load of one sequence's prefix. It is looked up, planned, then in flight while other
    blocks are computed.

    A segment that is awaited, in flight or loaded is not computed: computation stops at its start,
    and continues at its end once the segment is loaded. Any other segment is dropped and computed
    if computation reaches it before its load has started.
    """

    digests: Sequence[bytes] = ()
    block_size: int = 1
    deadline: float = math.inf
    """Clock time at which the sequence stops waiting for probes."""
    stats: Sequence[TierStats] = ()
    found: list[set[Chunk]] = field(default_factory=list)
    """For each tier that stores chunks, the chunks of this prefix found there."""
    probes: list[int] = field(default_factory=list)
    """Numbers of the tiers whose probes are not answered yet."""
    first_asked: int = 0
    """Number, in the sequence, of the first chunk that was probed."""
    deepened: bool = False
    """Whether shorter forms of a missing full chunk have been probed."""
    ram_first: int = 0
    ram_slots: list[int] = field(default_factory=list)
    """RAM slots of the blocks from `ram_first` on, held until loaded or dropped."""
    looked: bool = False
    """Whether the index of the RAM tier was searched."""
    available: Sequence[LoadSegment] = ()
    """All segments of the prefix that tiers have, whether they are loaded or not."""
    segments: list[LoadSegment] = field(default_factory=list)
    """Segments chosen to be loaded, in block order. Segments that have failed, or that computation
    has passed, are removed.
    """
    blocks: Sequence[array[int]] = ()
    """Block tables of the sequence."""
    whole: bool = False
    """Whether all segments are awaited, so that one lost segment loses the whole load. Needed if
    there are groups with a window: these groups have no blocks for computing tokens before the end
    of the load.
    """
    lost: bool = False
    """Whether the load has failed. The sequence must then release its blocks, and computes its
    tokens once it gets new ones.
    """
    barred: bool = False
    """Whether loading is disabled because the previous load was lost."""
    planned: int = 0
    """Number of leading tokens that are in the pool, computed, or in a plan."""
    tokens: Counter[int] = field(default_factory=Counter)
    """Number of tokens that were loaded and used, by number of the tier."""

    @property
    def pending(self) -> bool:
        """Whether segments remain to be loaded or computed, or the load is lost."""
        return bool(self.segments) or self.lost

    @property
    def end(self) -> int:
        """Index of the block after the last segment; 0 without segments."""
        return self.segments[-1].end if self.segments else 0

    def limit(self, end: int) -> int:
        """Token position, at most `end`, up to which tokens may be computed now."""
        for segment in self.segments:
            if segment.awaited or segment.state is not SegmentState.WAITING:
                return min(end, segment.first * self.block_size)
        return end

    def computing(self, end: int) -> list[LoadSegment]:
        """Drop and return the segments that have not started and begin before `end`, the position
        up to which tokens are planned.
        """
        self.planned = end
        before = self.segments
        self.segments = [
            segment
            for segment in before
            if segment.first * self.block_size >= end or segment.state is not SegmentState.WAITING
        ]
        return [segment for segment in before if segment not in self.segments]

    def advance(self, computed: int, known: int) -> int:
        """Number of leading tokens whose KV is present: `computed` tokens, and the loaded segments
        that follow. Lower than `known`, the number of the sequence's tokens, because the last token
        must be computed.
        """
        size = self.block_size
        if self.whole and any(each.state is not SegmentState.LOADED for each in self.segments):
            return computed
        while self.segments:
            segment = self.segments[0]
            if segment.state is not SegmentState.LOADED or segment.first * size > computed:
                break
            del self.segments[0]
            end = min(segment.end * size, known - 1)
            if end > computed:
                self.tokens[segment.tier] += end - computed
                self.stats[segment.tier].hit_tokens += end - computed
                computed = end
        return computed

    def tier_tokens(self) -> TierTokens:
        """Number of tokens that were loaded and used, by kind of tier."""
        by_kind: Counter[TierKind] = Counter()
        for tier, tokens in self.tokens.items():
            by_kind[self.stats[tier].kind] += tokens
        return TierTokens(by_kind[TierKind.RAM], by_kind[TierKind.DISK], by_kind[TierKind.REMOTE])

    def choose(self, plan: LoadPlan) -> None:
        """Replace the segments that have not started by the segments of `plan`. Segments in flight
        are kept.
        """
        for segment in plan.awaited:
            segment.awaited = True
        for segment in plan.meanwhile:
            segment.awaited = False
        begun = [each for each in self.segments if each.state is not SegmentState.WAITING]
        chosen = [*begun, *plan.awaited, *plan.meanwhile]
        self.segments = sorted(chosen, key=lambda segment: segment.first)

    def abandon_waiting(self, tier: int) -> None:
        """Drop the segments that wait for this tier. They are computed, unless a later plan chooses
        them again.
        """
        for segment in list(self.segments):
            if segment.tier == tier and segment.state is SegmentState.WAITING:
                segment.awaited = False
                self.lose(segment)

    def lose(self, segment: LoadSegment) -> None:
        """Drop a segment, which is then computed. If the load is `whole`, the whole load is
        lost.
        """
        self.segments.remove(segment)
        self.lost = self.whole

    def left(self) -> list[LoadSegment]:
        """Segments that could still be loaded, chosen or not. For the RAM tier only chosen
        segments, because no slots are held for others.
        """
        waiting = [each for each in self.available if each.state is SegmentState.WAITING]
        after = [each for each in waiting if each.first * self.block_size >= self.planned]
        return [each for each in after if each.key or each in self.segments]

    @property
    def open(self) -> bool:
        """Whether any segment can still be loaded."""
        end = self.available[-1].first * self.block_size if self.available else -1
        return self.planned <= end

    def next_waiting(self, tiers: Collection[int]) -> LoadSegment | None:
        """The segment to start next on one of these tiers: the first awaited segment, else the last
        segment, because loading proceeds from the end backwards. None if no segment is waiting.
        """
        waiting = [
            each
            for each in self.segments
            if each.state is SegmentState.WAITING and each.tier in tiers
        ]
        return next((each for each in waiting if each.awaited), waiting[-1] if waiting else None)


class Loader:
    def __init__(self, common: TierContext, write_behind: WriteBehind) -> None:
        self._pools, self._transfers, self._index = common.pools, common.transfers, common.index
        self._rates, self._stats = common.rates, common.stats
        self._shape, self._clock = common.shape, common.clock
        self._write_behind = write_behind
        tiers = len(self._stats.tiers)
        self.backlog = [0] * tiers
        """Bytes of the loads in flight on each tier."""
        self._loading = [0] * tiers
        self._issued: dict[LoadSegment, PrefixLoad] = {}
        """Segments in flight and not abandoned, each with its load, in order of start."""
        self._loads: list[PrefixLoad] = []
        self._skipped: set[int] = set()
        """Tiers that were skipped when the circuit breakers were last checked."""
        self._measure_at = [-math.inf] * tiers

    def plan(self, segments: Sequence[LoadSegment], whole: bool = False) -> LoadPlan:
        """Choose which of `segments` to load. With `whole`, all chosen segments are awaited."""
        plan, skipped = plan_whole if whole else plan_load, self._transfers.skipped
        return plan(segments, self.backlog, self._rates, self._shape, skipped)

    def begin(self, load: PrefixLoad) -> None:
        for tier in self._transfers.skipped:
            load.abandon_waiting(tier)
        self._count_decision(load)
        if load.segments:
            self._loads.append(load)
            self._issue()
        self._measure_unused(load)

    def end(self, load: PrefixLoad) -> None:
        """Drop a load that is no longer needed. Its transfers that have not started are cancelled;
        the others run to their end.
        """
        if load in self._loads:
            self._loads.remove(load)
        self.drop(each for each in load.segments if each.state is SegmentState.WAITING)
        issued = [each for each in load.segments if each.state is SegmentState.ISSUED]
        self._transfers.cancel([each.id for each in issued])
        load.segments = []

    def drop(self, segments: Iterable[LoadSegment]) -> None:
        """Release the RAM slots of segments that will not start."""
        if self._index is not None:
            for segment in segments:
                self._index.release(segment.slots)

    def poll(self) -> None:
        self._follow_breakers()
        if self._issued:
            self._abandon_stalled()
        if self._loads:
            self._loads = [load for load in self._loads if load.segments or load.open]
            self._issue()

    def _follow_breakers(self) -> None:
        """Drop the segments that wait for a tier whose breaker has opened. Plan again when a
        breaker has closed.
        """
        skipped = self._transfers.skipped
        opened, closed = skipped - self._skipped, self._skipped - skipped
        self._skipped = skipped
        for load in self._loads:
            for tier in opened:
                load.abandon_waiting(tier)
            if closed:
                self._plan_again(load)

    def _count_decision(self, load: PrefixLoad) -> None:
        decisions, segments = self._stats.decisions, load.segments
        if not segments:
            decisions.compute += bool(load.available)
        elif all(each.awaited for each in segments) and len(segments) == len(load.available):
            decisions.load += 1
        else:
            decisions.both += 1

    def _issue(self) -> None:
        for load in self._loads:
            while segment := load.next_waiting(self._free()):
                self._load(load, segment)

    def _free(self) -> set[int]:
        free = {tier for tier, loading in enumerate(self._loading) if loading < IN_FLIGHT}
        return free - self._transfers.skipped

    def _load(self, load: PrefixLoad, segment: LoadSegment) -> None:
        self._count(segment, 1)
        self._issued[segment] = load
        segment.state = SegmentState.ISSUED
        segment.id = self._transfers.begin(
            TransferKind.LOAD,
            segment.tier,
            partial(self._loaded, load, segment),
            blocks=[group[segment.first : segment.end] for group in load.blocks],
            slots=segment.slots,
            keys=segment.key,
            limit=self._limit(segment),
        )

    def _limit(self, segment: LoadSegment) -> float:
        """Seconds after which the segment's load counts as stalled."""
        tier, size = segment.tier, self._shape.block_size
        expected = self._rates.queue_seconds(tier, self.backlog[tier])
        computed = self._rates.compute_seconds(segment.first * size, segment.blocks * size)
        return max(STALLED * expected, computed, LEAST_STALL)

    def _loaded(self, load: PrefixLoad, segment: LoadSegment, moved: TransferResult) -> None:
        tier = segment.tier
        if self._issued.pop(segment, None):
            self._count(segment, -1)
        self.drop([segment])
        wanted = segment in load.segments
        if wanted or moved.done or moved.error:
            self._stats.tiers[tier].loaded(moved)
        if moved.done:
            segment.state = SegmentState.LOADED
            self._rates.loaded(tier, moved.bytes, moved.seconds)
            if load in self._loads:
                self._plan_again(load)
        elif wanted:
            load.lose(segment)
        if not moved.done and segment.key and (wanted or moved.error):
            self._write_behind.forget(tier, segment.key)

    def _count(self, segment: LoadSegment, more: int) -> None:
        self._loading[segment.tier] += more
        self.backlog[segment.tier] += more * segment.blocks * self._shape.block_bytes

    def _abandon_stalled(self) -> None:
        """Abandon stalled loads, so that other loads can start. The sequence gets new blocks and
        computes its tokens. If the pool has too few blocks, the sequence releases all its blocks
        and waits.
        """
        pool, stalled = self._pools[0], self._transfers.stalled
        for segment, load in [each for each in self._issued.items() if each[0].id in stalled]:
            if segment in load.segments:
                if load.whole or pool.available < segment.blocks:
                    load.lost = True
                else:
                    load.lose(segment)
                    for at in range(segment.first, segment.end):
                        pool.release((load.blocks[0][at],))
                        load.blocks[0][at] = pool.take()
                self._stats.tiers[segment.tier].errors += 1
            del self._issued[segment]
            self._count(segment, -1)

    def _plan_again(self, load: PrefixLoad) -> None:
        """Plan again after a tier has answered, because the tier may be faster than estimated, or
        in use again.
        """
        left = load.left()
        if load.whole or all(segment.awaited for segment in left):
            return
        load.choose(self.plan(left))
        self.drop(each for each in left if each.slots and each not in load.segments)

    # Measurements ---------------------------------------------------------------------------------

    def _measure_unused(self, load: PrefixLoad) -> None:
        """Measure the speed of a tier from which no segment is loaded, because its estimate is too
        slow or the tier is skipped. Without measurements the tier would never be used again. The
        load goes to spare blocks, and no request awaits it. While the breaker is half open, this
        load is the trial.
        """
        used = {RAM, *(each.tier for each in load.segments)}
        unused = [each for each in load.available if each.tier not in used]
        if not unused:
            return
        segment, now = unused[-1], self._clock()
        tier, blocks = segment.tier, segment.blocks
        pool = max(self._pools, key=lambda pool: pool.available)
        due = now >= self._measure_at[tier] or tier in self._transfers.skipped
        if not (due and self._transfers.admits(tier)) or pool.available < MEASURE_SPARE * blocks:
            return
        spare, limit = [pool.take() for _ in range(blocks)], self._limit(segment)
        self._measure_at[tier] = now + limit
        done = partial(self._measured, tier, now)
        into = [spare if each is pool else [NO_BLOCK] * blocks for each in self._pools]
        self._transfers.begin(
            TransferKind.LOAD, tier, done, blocks=into, keys=segment.key, limit=limit
        )
        pool.release(spare)

    def _measured(self, tier: int, began: float, moved: TransferResult) -> None:
        now = self._clock()
        self._measure_at[tier] = now + max(MEASURE_INTERVAL, MEASURE_SHARE * (now - began))
        self._stats.tiers[tier].loaded(moved)
        if moved.done:
            self._rates.measured(tier, moved.bytes, moved.seconds)
