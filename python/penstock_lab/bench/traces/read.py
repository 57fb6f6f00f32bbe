"""Reads trace files in four formats, detected by content.

* `azure`: Azure LLM inference traces 2023 and 2024 (github.com/Azure/AzurePublicDataset), CSV with
  TIMESTAMP, ContextTokens, GeneratedTokens.
* `mooncake`: Mooncake's JSONL (github.com/kvcache-ai/Mooncake), milliseconds, blocks of 512 tokens.
* `bailian`: Qwen-Bailian's JSONL (github.com/alibaba-edu/qwen-bailian-usagetraces-anon), seconds,
  blocks of 16 tokens.
* `burstgpt`: BurstGPT's CSV (github.com/HPMLL/BurstGPT). A response of 0 tokens is a failure and is
  dropped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.datasets.files import json_lines, malformed, opened

MOONCAKE_BLOCK = 512
BAILIAN_BLOCK = 16
MOST_TOKENS = 2**31 - 1
MOST_CLOCK = 10**15
STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
COUNT = re.compile(r"\d{1,12}")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at: float
    """Seconds after the first arrival."""
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """An id for each block of the prompt. Prompts with equal leading ids have equal prefixes. Empty
    if the trace has no ids.
    """
    block_tokens: int = 0
    """Tokens in a block of `hash_ids`; the last block may have fewer."""


@dataclass(frozen=True, slots=True)
class Trace:
    path: Path
    format: str
    arrivals: tuple[Arrival, ...]
    """Sorted by time, ascending."""
    failures: int = 0
    """Number of rows skipped because the recorded request had failed."""

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.arrivals[-1].at


Row = tuple[int, Arrival]
"""(arrival time in nanoseconds on the file's clock, the request with `at` still unset)."""


def read(path: Path, format: str = "auto") -> Trace:  # noqa: A002 - the flag's name
    """Read a trace. `format` is `auto` or one of FORMATS."""
    kind = _detected(path) if format == "auto" else format
    if kind not in FORMATS:
        raise InvalidValueError("--trace-format", format, f"auto, {', '.join(FORMATS)}")
    rows: list[Row] = []
    failures = 0
    for row in FORMATS[kind](path):
        if row is None:
            failures += 1
        else:
            rows.append(row)
    if not rows:
        raise PenstockError(f"{path} holds no request ({failures} failed ones)")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    arrivals = tuple(replace(arrival, at=(clock - first) / 1e9) for clock, arrival in rows)
    return Trace(path, kind, arrivals, failures)


def _detected(path: Path) -> str:
    with opened(path) as file:
        head = next((line for line in file if line.strip()), "")
    if head.lstrip().startswith("{"):
        return "bailian" if '"chat_id"' in head else "mooncake"
    columns = {name.strip() for name in head.split(",")}
    if "ContextTokens" in columns:
        return "azure"
    if "Request tokens" in columns:
        return "burstgpt"
    expected = (
        "a header with ContextTokens (Azure) or Request tokens (BurstGPT), or JSON lines "
        "(Mooncake, Bailian)"
    )
    raise malformed(path, 1, head.strip(), expected)


def _azure(path: Path) -> Iterator[Row | None]:
    for line, row in _csv(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        stamp, context, generated = row
        yield (
            _stamp(path, line, stamp),
            Arrival(
                0.0,
                _count(path, line, "ContextTokens", context),
                _count(path, line, "GeneratedTokens", generated),
            ),
        )


def _burstgpt(path: Path) -> Iterator[Row | None]:
    for line, row in _csv(path, ("Timestamp", "Request tokens", "Response tokens")):
        asked = _count(path, line, "Request tokens", row[1])
        answered = _count(path, line, "Response tokens", row[2])
        clock = _clock(path, line, "Timestamp", row[0], 1_000_000_000)
        yield (clock, Arrival(0.0, asked, answered)) if answered else None


def _mooncake(path: Path) -> Iterator[Row | None]:
    return _json(path, 1_000_000, MOONCAKE_BLOCK)


def _bailian(path: Path) -> Iterator[Row | None]:
    return _json(path, 1_000_000_000, BAILIAN_BLOCK)


FORMATS: Mapping[str, Callable[[Path], Iterator[Row | None]]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "bailian": _bailian,
    "burstgpt": _burstgpt,
}


def _json(path: Path, unit: int, block: int) -> Iterator[Row | None]:
    for line, fields in json_lines(path):
        hashes = fields.get("hash_ids", [])
        if not isinstance(hashes, list) or not all(type(item) is int for item in hashes):
            raise malformed(path, line, hashes, "hash_ids: a list of whole numbers")
        arrival = Arrival(
            0.0,
            _count(path, line, "input_length", fields.get("input_length")),
            _count(path, line, "output_length", fields.get("output_length")),
            tuple(hashes),
            block if hashes else 0,
        )
        yield _clock(path, line, "timestamp", fields.get("timestamp"), unit), arrival


def _csv(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Line number and the values of `columns` in each row."""
    with opened(path) as file:
        reader = csv.reader(file)
        try:
            header = [name.strip() for name in next(reader, [])]
            if not set(columns) <= set(header):
                raise malformed(path, 1, ",".join(header), f"a header with {', '.join(columns)}")
            places = [header.index(name) for name in columns]
            for row in reader:
                if row and len(row) != len(header):
                    raise malformed(
                        path,
                        reader.line_num,
                        ",".join(row),
                        f"{len(header)} values: {','.join(header)}",
                    )
                if row:
                    yield reader.line_num, [row[place] for place in places]
        except csv.Error as error:
            raise malformed(path, reader.line_num, str(error), "comma-separated values") from error


def _count(path: Path, line: int, name: str, value: object) -> int:
    count = value
    if isinstance(value, str) and COUNT.fullmatch(value.strip()):
        count = int(value)
    if type(count) is not int or not 0 <= count <= MOST_TOKENS:
        raise malformed(path, line, value, f"{name}: a whole number from 0 to {MOST_TOKENS}")
    return count


def _clock(path: Path, line: int, name: str, value: object, unit: int) -> int:
    """A time converted to nanoseconds; `unit` is the number of nanoseconds in the file's unit."""
    number = float(value) if isinstance(value, str) and NUMBER.fullmatch(value.strip()) else value
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not abs(number) < MOST_CLOCK
    ):
        kind = "seconds" if unit > 1_000_000 else "milliseconds"
        raise malformed(path, line, value, f"{name}: a number of {kind}")
    return round(number * unit)


def _stamp(path: Path, line: int, value: str) -> int:
    """A date and time as nanoseconds since 1970. Digits beyond datetime's microseconds are kept."""
    match = STAMP.fullmatch(value.strip())
    try:
        if match is None:
            raise ValueError
        seconds, fraction, zone = match.groups()
        moment = datetime.fromisoformat(seconds + (zone or ""))
    except ValueError as error:
        raise malformed(path, line, value, "TIMESTAMP: like 2023-11-16 18:15:46.6805900") from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp()) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))
