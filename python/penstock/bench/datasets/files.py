"""Foreign files, read line by line; errors name the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from penstock.core import PenstockError

EXCERPT = 80


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
