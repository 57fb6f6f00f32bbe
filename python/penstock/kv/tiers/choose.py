"""Load or compute: which pieces of a prefix are worth loading, and whether to compute meanwhile.

Loading goes from the end towards the beginning while the beginning is computed, and both meet: with prefill
rate R and bandwidth B of k bytes per token that is R + B / k tokens per second (Jin et al., "Compute or Load
KV Cache? Why Not Both?", arXiv 2410.03065).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.kv.tiers.pieces import Piece
from penstock.kv.tiers.rates import Rates


@dataclass(frozen=True, slots=True)
class Choice:
    pieces: list[Piece]
    patient: bool


def choose(
    pieces: Sequence[Piece],
    first: int,
    block_size: int,
    block_bytes: int,
    backlog: Sequence[int],
    rates: Rates,
    step_tokens: int,
) -> Choice:
    """Of `pieces`, which begin at block `first` without a gap, those that are there sooner than computed.

    `backlog` is the bytes under way in each tier. Nothing is computed meanwhile where that would save less
    than half a step of `step_tokens`: a step cannot be interrupted when the load is done.
    """
    if not pieces:
        return Choice([], True)
    start, end = first * block_size, pieces[-1].end * block_size
    queued = _queues(pieces, block_bytes, backlog, rates)
    step = rates.compute_seconds(start, min(step_tokens, end - start))
    load, compute = max(queued), rates.compute_seconds(start, end - start)
    # Both together take load x compute / (load + compute), so this is what they save.
    if load * load / (load + compute) <= step / 2:
        return Choice(list(pieces), True)
    return Choice(_from_the_end(pieces, start, block_size, block_bytes, backlog, rates), False)


def _queues(pieces: Sequence[Piece], block_bytes: int, backlog: Sequence[int], rates: Rates) -> list[float]:
    """Seconds until each tier has loaded its pieces."""
    sizes = list(backlog)
    for piece in pieces:
        sizes[piece.tier] += piece.blocks * block_bytes
    used = {piece.tier for piece in pieces}
    return [rates.queue_seconds(tier, sizes[tier]) for tier in used]


def _from_the_end(
    pieces: Sequence[Piece],
    start: int,
    block_size: int,
    block_bytes: int,
    backlog: Sequence[int],
    rates: Rates,
) -> list[Piece]:
    sizes = list(backlog)
    chosen: list[Piece] = []
    for piece in reversed(pieces):
        size = piece.blocks * block_bytes
        sizes[piece.tier] += size
        done = piece.end * block_size
        there = max(rates.queue_seconds(piece.tier, sizes[piece.tier]), rates.load_seconds(piece.tier, size))
        if there > rates.compute_seconds(start, done - start):
            break
        chosen.append(piece)
    return chosen[::-1]
