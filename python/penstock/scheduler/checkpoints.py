"""Positions at which the state of a sequence becomes a state checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Collection

from penstock.kv import KvCache, Match


def first_checkpoints(kv: KvCache, tokens: int, found: Match) -> set[int]:
    """Positions that a sequence with `tokens` known tokens is to keep, when it is admitted with the
    prefix `found`:

    * the last block end before the last token, which the same prompt can begin at, and mostly a
      longer one too;
    * the end of the KV that was found: another prompt has left the path there, so more may.
    """
    size = kv.block_size
    last = (tokens - 1) // size
    return {at * size for at in (found.kv, last) if at > found.hits}


def checkpoints_within(kv: KvCache, chosen: Collection[int], start: int, end: int) -> list[int]:
    """Positions after `start`, and up to `end`, at which a row makes a checkpoint: the `chosen`
    ones, newest first, then the last block end. From the last one a preempted sequence goes on.
    """
    if kv.hasher is None:
        return []
    positions = sorted((at for at in chosen if start < at <= end), reverse=True)
    last = end // kv.block_size * kv.block_size
    return positions if last <= start or last in positions else [*positions, last]
