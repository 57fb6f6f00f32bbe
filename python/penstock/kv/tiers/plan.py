"""Chooses between load and computation: finds the segments of a prefix that the tiers have, and
selects those to load.

Segments are loaded from the end backwards while the beginning is computed, until both meet. With
prefill rate R, bandwidth B and k bytes per token, this yields R + B / k tokens per second (Jin et
al., "Compute or Load KV Cache? Why Not Both?", arXiv 2410.03065). Computation first waits for the
leading segments that a fast tier has.

    RAM RAM RAM S3 S3 S3 S3 S3 S3
    awaited --> computed -> <- loaded meanwhile

If a KV group has a window, the whole load is awaited: that group gets only the blocks visible from
the end of the load, so no token before the end can be computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby

from penstock.core.transfer import RAM
from penstock.kv.tiers.contract import Shape
from penstock.kv.tiers.rates import Rates

RAM_SEGMENT = 32
"""Maximum number of RAM blocks in one transfer."""

Chunk = tuple[bytes, int]
"""A chunk: digest of its last block, and its number of blocks."""


class SegmentState(Enum):
    WAITING = 0
    ISSUED = 1
    LOADED = 2


@dataclass(slots=True, eq=False)
class LoadSegment:
    """Blocks first .. end - 1 of a sequence, which one transfer loads."""

    tier: int
    first: int
    end: int
    slots: list[int] = field(default_factory=list)
    """Slots of the blocks in the RAM tier; empty for other tiers."""
    key: bytes = b""
    """Digest of the chunk in a tier that stores chunks; empty for RAM."""
    awaited: bool = False
    """Whether computation waits at this segment until it is loaded. Any other segment is dropped
    and computed if its load has not started when computation reaches it.
    """
    state: SegmentState = SegmentState.WAITING
    id: int = 0
    """Id of the transfer, once the load has started."""

    @property
    def blocks(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class LoadPlan:
    awaited: Sequence[LoadSegment]
    """Leading segments. Computation waits for them, because their load is faster."""
    meanwhile: Sequence[LoadSegment]
    """Segments loaded while the tokens before them are computed."""


# Segments -----------------------------------------------------------------------------------------


def chunks_to_probe(digests: Sequence[bytes], first: int, per_chunk: int) -> list[Chunk]:
    """Chunks to query in the tiers: the full chunks from the chunk of block `first` on, then the
    possible tails of the prompt, longest first.
    """
    full = len(digests) // per_chunk
    start = first // per_chunk
    whole = [(digests[(at + 1) * per_chunk - 1], per_chunk) for at in range(start, full)]
    return whole + tails_to_probe(digests, full, per_chunk)


def tails_to_probe(digests: Sequence[bytes], chunk: int, per_chunk: int) -> list[Chunk]:
    """Partial chunks (tails) that a tier may have instead of the full chunk number `chunk`: its
    leading blocks, longest first.
    """
    start = chunk * per_chunk
    most = min(per_chunk - 1, len(digests) - start)
    return [(digests[start + blocks - 1], blocks) for blocks in range(most, 0, -1)]


def cover(
    digests: Sequence[bytes],
    hits: int,
    per_chunk: int,
    slots: list[int],
    found: Sequence[set[Chunk]],
) -> list[LoadSegment]:
    """The longest gapless run of segments from block `hits` on: first the blocks in RAM's `slots`,
    then chunk by chunk, each from the first tier that has the chunk. `found`: chunks of each such
    tier.

    A chunk is moved as a whole and may overlap earlier blocks, so the first segment can begin
    before `hits`.
    """
    segments = _ram_segments(hits, slots)
    at = hits + len(slots)
    while at < len(digests) and (segment := _chunk_segment(digests, at, per_chunk, found)):
        _cut(segments, segment.first)
        segments.append(segment)
        at = segment.end
    return segments


def _ram_segments(first: int, slots: list[int]) -> list[LoadSegment]:
    runs = [slots[at : at + RAM_SEGMENT] for at in range(0, len(slots), RAM_SEGMENT)]
    starts = range(first, first + len(slots), RAM_SEGMENT)
    return [
        LoadSegment(RAM, start, start + len(run), run)
        for start, run in zip(starts, runs, strict=True)
    ]


def _chunk_segment(
    digests: Sequence[bytes], at: int, per_chunk: int, found: Sequence[set[Chunk]]
) -> LoadSegment | None:
    start = at // per_chunk * per_chunk
    for blocks in range(min(per_chunk, len(digests) - start), at - start, -1):
        chunk = digests[start + blocks - 1], blocks
        for tier, chunks in enumerate(found, start=1):
            if chunk in chunks:
                return LoadSegment(tier, start, start + blocks, key=chunk[0])
    return None


def _cut(segments: list[LoadSegment], end: int) -> None:
    """Cut the segments so that only blocks before block `end` remain. Chunks are dropped whole."""
    while segments and segments[-1].end > end:
        last = segments[-1]
        if last.first >= end or last.tier != RAM:
            segments.pop()
        else:
            last.end = end
            del last.slots[last.blocks :]


# Choice -------------------------------------------------------------------------------------------


def plan_load(
    segments: Sequence[LoadSegment],
    backlog: Sequence[int],
    rates: Rates,
    shape: Shape,
    skipped: Collection[int] = (),
) -> LoadPlan:
    """Choose the segments to load: leading ones that are awaited, and others, from the end, that
    arrive before computation would reach them. `backlog` is the bytes in flight on each tier.
    Nothing is loaded from `skipped` tiers.
    """
    awaited = _worth_waiting(segments, backlog, rates, shape, skipped)
    sizes = list(backlog)
    for segment in awaited:
        sizes[segment.tier] += segment.blocks * shape.block_bytes
    begin = max(
        (rates.queue_seconds(segment.tier, sizes[segment.tier]) for segment in awaited), default=0.0
    )
    meanwhile = _from_the_end(segments[len(awaited) :], begin, sizes, rates, shape, skipped)
    return LoadPlan(awaited, meanwhile)


def plan_whole(
    segments: Sequence[LoadSegment],
    backlog: Sequence[int],
    rates: Rates,
    shape: Shape,
    skipped: Collection[int] = (),
) -> LoadPlan:
    """Choose how many leading segments to load, all awaited. The choice minimises the time of the
    load plus the computation of the rest. Empty if computing everything is faster.
    """
    if not segments:
        return LoadPlan((), ())
    end, size = segments[-1].end, shape.block_size
    sizes, slowest, count = list(backlog), 0.0, 0
    first = segments[0].first
    best = rates.compute_seconds(first * size, (end - first) * size)
    for at, segment in enumerate(segments, start=1):
        tier = segment.tier
        if tier in skipped:
            break
        sizes[tier] += segment.blocks * shape.block_bytes
        slowest = max(slowest, rates.queue_seconds(tier, sizes[tier]))
        windows = rates.queue_seconds(tier, sizes[tier] + shape.window_bytes)
        rest = rates.compute_seconds(segment.end * size, (end - segment.end) * size)
        if (seconds := max(slowest, windows) + rest) <= best:
            best, count = seconds, at
    return LoadPlan(segments[:count], ())


def _worth_waiting(
    segments: Sequence[LoadSegment],
    backlog: Sequence[int],
    rates: Rates,
    shape: Shape,
    skipped: Collection[int],
) -> Sequence[LoadSegment]:
    """Leading segments worth waiting for: computing while they load would save less than half a
    step's time. A running step cannot be interrupted when the load is done.
    """
    sizes, count = list(backlog), 0
    for tier, group in groupby(segments, key=lambda segment: segment.tier):
        if tier in skipped:
            break
        run = list(group)
        blocks = run[-1].end - run[0].first
        start, tokens = run[0].first * shape.block_size, blocks * shape.block_size
        sizes[tier] += blocks * shape.block_bytes
        step = rates.compute_seconds(start, min(shape.step_tokens, tokens))
        load, compute = rates.queue_seconds(tier, sizes[tier]), rates.compute_seconds(start, tokens)
        # Load and compute in parallel take load x compute / (load + compute) seconds. This is the
        # time saved compared with the load alone.
        if not load / (1 + compute / load) <= step / 2:
            break
        count += len(run)
    return segments[:count]


def _from_the_end(
    segments: Sequence[LoadSegment],
    begin: float,
    backlog: Sequence[int],
    rates: Rates,
    shape: Shape,
    skipped: Collection[int],
) -> Sequence[LoadSegment]:
    """Segments to load from the end backwards, as long as each arrives before computation would
    reach it. Computation starts at the first segment in `begin` seconds.
    """
    sizes = list(backlog)
    chosen: list[LoadSegment] = []
    too_slow = set(skipped)
    for segment in reversed(segments):
        tier = segment.tier
        if tier in too_slow:
            continue
        size = segment.blocks * shape.block_bytes
        sizes[tier] += size
        tokens = (segment.end - segments[0].first) * shape.block_size
        load = max(rates.queue_seconds(tier, sizes[tier]), rates.load_seconds(tier, size))
        if load > begin + rates.compute_seconds(segments[0].first * shape.block_size, tokens):
            too_slow.add(tier)
        else:
            chosen.append(segment)
    return chosen[::-1]
