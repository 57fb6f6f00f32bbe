"""Token ids derived from a name, equal in every run and process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random


def drawn(vocabulary: Sequence[int], name: str, rank: int, length: int) -> list[int]:
    """`length` ids of `vocabulary`. For the same name and rank, a shorter result is a prefix of a
    longer one.

    The first id is the one at `rank`, so that prompts with different ranks (modulo the vocabulary's
    size) have no common prefix by accident.
    """
    if length <= 0:
        return []
    ids = Random(name).choices(vocabulary, k=length)
    ids[0] = vocabulary[rank % len(vocabulary)]
    return ids


@lru_cache(maxsize=64)
def first_rank(seed: int, vocabulary_size: int) -> int:
    """Rank of a seed's first id; differs between seeds."""
    return Random(f"rank:{seed}").randrange(vocabulary_size)


def fresh(vocabulary: Sequence[int], seed: int, index: int, length: int) -> list[int]:
    """Ids of the unique prompt number `index` for `seed`."""
    rank = first_rank(seed, len(vocabulary)) + index
    return drawn(vocabulary, f"prompt:{seed}:{index}", rank, length)


def block(vocabulary: Sequence[int], seed: int, hash_id: int, length: int) -> list[int]:
    """Ids of a trace's block `hash_id`, equal for the same id in any request."""
    rank = first_rank(seed, len(vocabulary)) + hash_id
    return drawn(vocabulary, f"block:{seed}:{hash_id}", rank, length)


def shared_prefix(vocabulary: Sequence[int], seed: int, length: int) -> list[int]:
    """Ids of the prefix shared by all prompts of a run."""
    return drawn(vocabulary, f"prefix:{seed}", first_rank(seed, len(vocabulary)), length)
