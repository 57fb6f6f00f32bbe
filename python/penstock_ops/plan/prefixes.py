"""Prefixes of prompts that a replica still has: in its KV, and in tiers behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BLOCK = 16
"""Tokens of a block of the KV: a prompt is found in whole ones."""


@dataclass(frozen=True, slots=True)
class Store:
    """A tier, as one replica has it."""

    tokens: int
    """Tokens of the replica that it holds."""
    seconds: float
    """Time of loading one of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """Leading tokens of a prompt that need not be computed."""

    pooled: int
    """In the KV."""
    stored: int
    """After those, in tiers."""
    seconds: float
    """Time of loading these."""


class Prefixes:
    """Blocks by name. The ones that were not used for the longest time leave first."""

    def __init__(self, stores: Sequence[Store] = ()) -> None:
        self._pool: dict[int, int] = {}
        self._stores = [(store, dict[int, int]()) for store in stores]
        self._pooled = 0
        self._held = [0] * len(self._stores)

    def find(self, names: Sequence[int], size: int, tokens: int, room: int) -> Found:
        """What a prompt of `tokens` tokens finds, by `names` of its blocks of `size` tokens. The KV
        has room for so many tokens beside running requests. The last token is always computed.
        """
        self._pooled = _evict(self._pool, self._pooled, room)
        most = (tokens - 1) // BLOCK * BLOCK
        pooled = _leading(names, size, self._pool.get)
        blocks = [] if pooled % size else names[pooled // size :]
        stored = _leading(blocks, size, self._stored)
        pooled = min(pooled // BLOCK * BLOCK, most)
        stored = min(stored // BLOCK * BLOCK, most - pooled)
        return Found(pooled, stored, self._seconds(blocks, size, stored))

    def keep(self, names: Sequence[int], size: int, tokens: int) -> None:
        """A prompt's blocks, computed or loaded: the first ones leave last."""
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
        """Time of loading so many tokens, each block from the first tier that has it."""
        rates = (
            next(store.seconds for store, kept in self._stores if name in kept)
            for name in names[: -(-tokens // size)]
        )
        return sum(min(size, tokens - at * size) * rate for at, rate in enumerate(rates))


def _leading(names: Sequence[int], size: int, kept: Callable[[int], int | None]) -> int:
    """Tokens of the leading blocks that there are; nothing follows a partial one."""
    total = 0
    for name in names:
        block = kept(name) or 0
        total += block
        if block < size:
            break
    return total


def _put(kept: dict[int, int], name: int, tokens: int) -> int:
    """Make a block the last to leave; the tokens that it adds."""
    before = kept.pop(name, 0)
    kept[name] = max(tokens, before)
    return kept[name] - before


def _evict(kept: dict[int, int], held: int, room: int) -> int:
    """Tokens that stay when the oldest blocks have left."""
    while held > room and kept:
        held -= kept.pop(next(iter(kept)))
    return held
