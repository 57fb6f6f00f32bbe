"""Foreign files: what to take of them, and reading line by line; errors name the line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import TextIO, TypeVar

from penstock.core import PenstockError
from penstock_lab.bench.request import Request

EXCERPT = 80
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What to take of a file of prompts."""

    path: Path
    num_prompts: int = 0
    """0: as many as the file has."""
    output_len: int | None = None
    """Tokens to ask for; None: as the file says."""
    shuffle: bool = True
    oversample: bool = True
    """Whether requests are repeated where there are fewer."""

    def shuffled(self, items: list[T], seed: int) -> list[T]:
        """`items` in an order that depends on the seed only."""
        if self.shuffle:
            items = items.copy()
            Random(f"shuffle:{seed}").shuffle(items)
        return items

    def take(self, requests: Iterable[Request], seed: int) -> list[Request]:
        """The requested number of requests. PenstockError when there are none."""
        taken = list(islice(requests, self.num_prompts or None))
        if not taken:
            raise PenstockError(
                f"{self.path} has no request that fits: see --help for what is filtered out"
            )
        if self.oversample and len(taken) < self.num_prompts:
            rng = Random(f"oversample:{seed}")
            taken += [rng.choice(taken) for _ in range(self.num_prompts - len(taken))]
        return taken


def malformed(path: Path, line: int, found: object, expected: str) -> PenstockError:
    text = found if isinstance(found, str) else repr(found)
    shown = text if len(text) <= EXCERPT else text[:EXCERPT] + "..."
    return PenstockError(f"{path}, line {line}: {shown!r}, expected {expected}")


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """`path` as UTF-8 text, with or without a byte order mark."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise PenstockError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PenstockError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Number and object of each line that is not empty."""
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, json_object(path, number, line)


def json_object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise malformed(path, number, line.strip(), f"one JSON object ({error})") from error
    if not isinstance(parsed, dict):
        raise malformed(path, number, line.strip(), "one JSON object")
    return parsed
