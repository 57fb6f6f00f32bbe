"""Pseudo-random token ids that depend only on a name, so every run and process gets the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random


def drawn(vocabulary: Sequence[int], name: str, rank: int, length: int) -> list[int]:
    """`length` ids of `vocabulary`. For the same name and rank, a shorter result is a prefix of a
    longer one.

    The first id is at index `rank` of the vocabulary (modulo its size). Prompts with different
    first ids cannot have a common prefix by accident.
    """
    if length <= 0:
        return []
    ids = Random(name).choices(vocabulary, k=length)
    ids[0] = vocabulary[rank % len(vocabulary)]
    return ids


@lru_cache(maxsize=64)
def first_rank(seed: int, vocabulary_size: int) -> int:
    """Index in the vocabulary at which a seed's ranks start; usually different for each seed."""
    return Random(f"rank:{seed}").randrange(vocabulary_size)


def fresh(vocabulary: Sequence[int], seed: int, index: int, length: int) -> list[int]:
    """Ids of the prompt number `index` for `seed`, which no other index or seed shares."""
    rank = first_rank(seed, len(vocabulary)) + index
    return drawn(vocabulary, f"prompt:{seed}:{index}", rank, length)


def block(vocabulary: Sequence[int], seed: int, hash_id: int, length: int) -> list[int]:
    """Ids of the prompt block `hash_id` of a trace, equal in every request with this block."""
    rank = first_rank(seed, len(vocabulary)) + hash_id
    return drawn(vocabulary, f"block:{seed}:{hash_id}", rank, length)


def shared_prefix(vocabulary: Sequence[int], seed: int, length: int) -> list[int]:
    """Ids of the prefix shared by all prompts of a run."""
    return drawn(vocabulary, f"prefix:{seed}", first_rank(seed, len(vocabulary)), length)
