"""Selection of the requested number of items from a file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from random import Random
from typing import TypeVar

from penstock.bench.request import Request
from penstock.core import InvalidValueError, PenstockError

T = TypeVar("T")


def shuffled(items: list[T], seed: int, shuffle: bool) -> list[T]:
    """`items` in an order that depends on the seed only."""
    if shuffle:
        items = items.copy()
        Random(f"shuffle:{seed}").shuffle(items)
    return items


def take(
    requests: Iterable[Request], count: int, seed: int, oversample: bool, path: Path
) -> list[Request]:
    """The first `count` requests, repeated where there are fewer if `oversample`."""
    if count < 1:
        raise InvalidValueError("--num-prompts", count, "a number above 0")
    taken = list(islice(requests, count))
    if not taken:
        raise PenstockError(f"{path} has no request that fits: see --help for what is filtered out")
    if oversample and len(taken) < count:
        rng = Random(f"oversample:{seed}")
        taken += [rng.choice(taken) for _ in range(count - len(taken))]
    return taken
