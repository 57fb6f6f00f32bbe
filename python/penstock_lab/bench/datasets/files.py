"""Reads dataset files, selects requests from them, and reports errors with line numbers."""

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
    """Selection of requests from a file of prompts."""

    path: Path
    num_prompts: int = 0
    """Number of requests to select; 0: all in the file."""
    output_len: int | None = None
    """Output tokens for each request; None: as in the file."""
    shuffle: bool = True
    oversample: bool = True
    """Whether to repeat requests if the file has too few."""

    def shuffled(self, items: list[T], seed: int) -> list[T]:
        """`items`, in random order if `shuffle` is set. The order depends only on `seed`."""
        if self.shuffle:
            items = items.copy()
            Random(f"shuffle:{seed}").shuffle(items)
        return items

    def take(self, requests: Iterable[Request], seed: int) -> list[Request]:
        """The first `num_prompts` requests. If there are fewer, random ones are repeated when
        `oversample` is set. Raises PenstockError if there are none.
        """
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
    """Line number and object of each non-empty line."""
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
