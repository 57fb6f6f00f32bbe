"""Load or compute: which pieces of a prefix are worth loading, and whether to compute meanwhile.

Loading goes from the end towards the beginning while the beginning is computed, and both meet: with
prefill rate R and bandwidth B of k bytes per token that is R + B / k tokens per second (Jin et al.,
"Compute or Load KV Cache? Why Not Both?", arXiv 2410.03065). What a fast tier has of the beginning
is awaited before that.

    RAM RAM RAM S3 S3 S3 S3 S3 S3
    awaited --> computed -> <- loaded meanwhile
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.kv_tiers.pieces import Piece
from penstock.kv_tiers.rates import Rates
from penstock.kv_tiers.shape import Shape


@dataclass(frozen=True, slots=True)
class Choice:
    awaited: Sequence[Piece]
    """From the first on: there so soon that nothing is computed before."""
    meanwhile: Sequence[Piece]
    """Loaded while what is before them is computed."""


def choose(pieces: Sequence[Piece], backlog: Sequence[int], rates: Rates, shape: Shape) -> Choice:
    """Of `pieces`, which follow each other without a gap, those that are there sooner than
    computed.

    `backlog` is the bytes under way in each tier.
    """
    awaited = worth_waiting(pieces, backlog, rates, shape)
    sizes = list(backlog)
    for piece in awaited:
        sizes[piece.tier] += piece.blocks * shape.block_bytes
    begin = max(
        (rates.queue_seconds(piece.tier, sizes[piece.tier]) for piece in awaited), default=0.0
    )
    return Choice(awaited, _from_the_end(pieces[len(awaited) :], begin, sizes, rates, shape))


def worth_waiting(
    pieces: Sequence[Piece], backlog: Sequence[int], rates: Rates, shape: Shape
) -> Sequence[Piece]:
    """The first of them, as many as computing meanwhile would save less than half a step of: a step
    cannot be interrupted when the load is done.
    """
    sizes, count = list(backlog), 0
    for tier, group in groupby(pieces, key=lambda piece: piece.tier):
        run = list(group)
        start, tokens = (
            run[0].first * shape.block_size,
            (run[-1].end - run[0].first) * shape.block_size,
        )
        sizes[tier] += (run[-1].end - run[0].first) * shape.block_bytes
        step = rates.compute_seconds(start, min(shape.step_tokens, tokens))
        load, compute = rates.queue_seconds(tier, sizes[tier]), rates.compute_seconds(start, tokens)
        # Both together take load x compute / (load + compute), so this is what they save.
        if not load / (1 + compute / load) <= step / 2:
            break
        count += len(run)
    return pieces[:count]


def _from_the_end(
    pieces: Sequence[Piece], begin: float, backlog: Sequence[int], rates: Rates, shape: Shape
) -> Sequence[Piece]:
    """Computing starts with the first of them, `begin` seconds from now."""
    sizes = list(backlog)
    chosen: list[Piece] = []
    too_slow: set[int] = set()
    for piece in reversed(pieces):
        if piece.tier in too_slow:
            continue
        size = piece.blocks * shape.block_bytes
        sizes[piece.tier] += size
        tokens = (piece.end - pieces[0].first) * shape.block_size
        there = max(
            rates.queue_seconds(piece.tier, sizes[piece.tier]), rates.load_seconds(piece.tier, size)
        )
        if there > begin + rates.compute_seconds(pieces[0].first * shape.block_size, tokens):
            too_slow.add(piece.tier)
        else:
            chosen.append(piece)
    return chosen[::-1]
