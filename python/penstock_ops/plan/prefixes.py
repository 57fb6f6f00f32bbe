"""Simulates which prompt prefixes a replica has cached: in its KV memory, and in the tiers behind
it (RAM, disk).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock_ops.plan.cut import BLOCK


@dataclass(frozen=True, slots=True)
class Store:
    """One replica's share of a KV tier."""

    tokens: int
    """Capacity in tokens of KV."""
    seconds: float
    """Seconds to load the KV of one token."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """How many leading tokens of a prompt are cached and need not be computed."""

    pooled: int
    """Number of tokens found in the replica's KV memory."""
    stored: int
    """Number of tokens found in tiers; they follow the pooled ones."""
    seconds: float
    """Seconds to load the stored tokens from tiers."""


class Prefixes:
    """LRU cache of prompt blocks by name, in the KV memory and in each tier."""

    def __init__(self, stores: Sequence[Store] = ()) -> None:
        self._pool: dict[int, int] = {}
        self._stores = [(store, dict[int, int]()) for store in stores]
        self._pooled = 0
        self._held = [0] * len(self._stores)

    def find(self, names: Sequence[int], size: int, tokens: int, room: int) -> CachedPrefix:
        """The cached leading tokens of a prompt, in whole KV blocks. The prompt has `tokens` tokens
        in blocks of `size` tokens with these `names`. `room` is the number of tokens that the KV
        memory can hold besides those of running requests; blocks beyond it are evicted first. The
        last token is always computed.
        """
        self._pooled = _evict(self._pool, self._pooled, room)
        most = (tokens - 1) // BLOCK * BLOCK
        pooled = _leading(names, size, self._pool.get)
        blocks = [] if pooled % size else names[pooled // size :]
        stored = _leading(blocks, size, self._stored)
        pooled = min(pooled // BLOCK * BLOCK, most)
        stored = min(stored // BLOCK * BLOCK, most - pooled)
        return CachedPrefix(pooled, stored, self._seconds(blocks, size, stored))

    def keep(self, names: Sequence[int], size: int, tokens: int) -> None:
        """Store all blocks of a prompt that was computed or loaded, in the KV memory and in the
        tiers. Within a prompt, later blocks are evicted first.
        """
        for at in reversed(range(len(names))):
            name, block = names[at], min(size, tokens - at * size)
            self._pooled += _put(self._pool, name, block)
            for number, (_, kept) in enumerate(self._stores):
                self._held[number] += _put(kept, name, block)
        for number, (store, kept) in enumerate(self._stores):
            self._held[number] = _evict(kept, self._held[number], store.tokens)

    def _stored(self, name: int) -> int | None:
        return next((kept[name] for _, kept in self._stores if name in kept), None)

    def _seconds(self, names: Sequence[int], size: int, tokens: int) -> float:
        """Seconds to load the first `tokens` tokens of the blocks `names`, each from the first tier
        that has it.
        """
        rates = (
            next(store.seconds for store, kept in self._stores if name in kept)
            for name in names[: -(-tokens // size)]
        )
        return sum(min(size, tokens - at * size) * rate for at, rate in enumerate(rates))


def _leading(names: Sequence[int], size: int, kept: Callable[[int], int | None]) -> int:
    """Number of leading tokens that are cached. `kept` gives the cached tokens of a block; a block
    with fewer than `size` ends the prefix.
    """
    total = 0
    for name in names:
        block = kept(name) or 0
        total += block
        if block < size:
            break
    return total


def _put(kept: dict[int, int], name: int, tokens: int) -> int:
    """Add a block as the most recently used one; returns by how many tokens the cache grew."""
    before = kept.pop(name, 0)
    kept[name] = max(tokens, before)
    return kept[name] - before


def _evict(kept: dict[int, int], held: int, room: int) -> int:
    """Evict the least recently used blocks until at most `room` of the `held` tokens remain;
    returns the remaining number.
    """
    while held > room and kept:
        held -= kept.pop(next(iter(kept)))
    return held
