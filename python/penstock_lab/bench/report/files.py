"""Reads the result files of a directory, which are untrusted. Invalid ones are reported and
skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench.compare.summary import COMPARISON_FILE
from penstock_lab.bench.report.wording import clean

MOST_BYTES = 1 << 30
_LARGEST = 1e15
"""Numbers from this size on are implausible and count as missing."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not a valid result, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReadResults:
    """Results with their file names, sorted by date."""

    results: tuple[tuple[str, Result], ...]
    comparison: Mapping[str, Any]
    skipped: tuple[Skipped, ...]


def read(directory: Path) -> ReadResults:
    """Read the `*.json` files of a directory.

    Raises:
        PenstockError: the directory does not exist.
    """
    if not directory.is_dir():
        raise PenstockError(f"{directory} is no directory: name one that holds result files")
    results: list[tuple[str, Result]] = []
    skipped: list[Skipped] = []
    comparison: Mapping[str, Any] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            values = list(_values(path))
        except (OSError, ValueError, RecursionError) as error:
            skipped.append(Skipped(clean(path.name), _reason(error)))
            continue
        if path.name == COMPARISON_FILE:
            comparison = values[0] if values and isinstance(values[0], dict) else {}
            continue
        kept = [tidy(value) for value in values if _is_result(value)]
        results += [(clean(path.name), result) for result in kept]
        if not kept:
            skipped.append(Skipped(clean(path.name), "holds no result of a benchmark"))
    results.sort(key=lambda found: (str(found[1].get("date", "")), found[0]))
    return ReadResults(tuple(results), comparison, tuple(skipped))


def _values(path: Path) -> Iterator[Any]:
    """The JSON values of a file: one, or several in sequence as `vllm bench serve --append-result`
    writes.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES >> 20} MiB")
    text = path.read_text(encoding="utf-8")
    decoder = json.JSONDecoder()
    position = len(text) - len(text.lstrip())
    while position < len(text):
        value, end = decoder.raw_decode(text, position)
        yield value
        position = end + len(text[end:]) - len(text[end:].lstrip()) if end < len(text) else end


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"is no JSON (line {error.lineno}: {error.msg})"
    return clean(str(error))


def _is_result(value: object) -> bool:
    return (
        isinstance(value, dict)
        and "completed" in value
        and number(value.get("duration")) is not None
    )


def number(value: object) -> float | None:
    """A finite number of plausible size, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return None
    return float(value) if math.isfinite(value) else None


def mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def tidy(result: Result) -> Result:
    """A copy of a result without implausible numbers, whose `penstock` fields have the right types.
    Readers need no further checks.
    """
    kept = {
        key: value
        for key, value in result.items()
        if number(value) is not None or not _is_number(value)
    }
    for name in ("completed", "failed"):
        kept[name] = int(max(number(result.get(name)) or 0, 0))
    if "penstock" in kept:
        kept["penstock"] = _tidy_own(mapping(kept["penstock"]))
    return kept


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tidy_own(own: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(own)
    for name in ("server", "workload", "axis", "command", "version"):
        kept[name] = clean(str(own[name])) if isinstance(own.get(name), str | int | float) else None
    kept["point"], kept["repeat"] = number(own.get("point")), int(number(own.get("repeat")) or 0)
    kept["failures"] = {
        clean(kind): int(many) for kind, many in _numbers(own.get("failures")).items()
    }
    kept["failure_examples"] = [
        clean(str(example)) for example in sequence(own.get("failure_examples"))
    ]
    kept["argv"] = [clean(str(word)) for word in sequence(own.get("argv"))]
    for name in ("send_lateness_ms", "usage", "process"):
        kept[name] = _numbers(own.get(name))
    kept["detail"] = mapping(own.get("detail"))
    return kept


def _numbers(value: object) -> dict[str, float]:
    found = {str(key): number(inner) for key, inner in mapping(value).items()}
    return {key: inner for key, inner in found.items() if inner is not None}
