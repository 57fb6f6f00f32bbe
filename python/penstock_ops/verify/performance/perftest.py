"""Text of perftest (linux-rdma/perftest), such as `ib_write_bw` and `ib_read_lat`.

A table follows a header whose lines and columns differ by version, so that columns are read by
name. Without --report_gbits rates are MiB/s, which versions before August 2024 label MB/sec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock_ops.verify.checks.parsing import decimal, numbered, whole
from penstock_ops.verify.error import ParseError

MEBI_BITS = (1 << 20) * 8 / 1e9
"""Gb of one MiB."""
UNITS: Mapping[str, float] = {"Gb/sec": 1.0, "MiB/sec": MEBI_BITS, "MB/sec": MEBI_BITS}
SIZE, RATE, TYPICAL = "#bytes", "MsgRate[Mpps]", "t_typical[usec]"
AVERAGE = re.compile(r"BW average\[(.*)\]")
COLUMN = re.compile(r"#\w+|BW \w+\[[^\]]*\]|[\d.]+% percentile\[[^\]]*\]|\w+\[[^\]]*\]|tps average")
TOLERANCE = 0.02
"""Rates are printed with two decimals or more."""
LEAST_DIFFERENCE = 0.01


@dataclass(frozen=True, slots=True)
class Bandwidth:
    bytes: int
    """Of a message."""
    gbit_per_s: float
    """Average of the run, not its peak."""


@dataclass(frozen=True, slots=True)
class Latency:
    bytes: int
    microseconds: float
    """The typical (median) value: of a read the round trip, of others half of it."""


def parse_bandwidth(text: str) -> list[Bandwidth]:
    """The rows of a test of bandwidth. ParseError for a row that contradicts itself."""
    columns, rows = _table(text)
    average = next((name for name in columns if AVERAGE.fullmatch(name)), "")
    unit = AVERAGE.fullmatch(average)
    if unit is None or unit[1] not in UNITS or RATE not in columns:
        expected = f"BW average in one of {', '.join(UNITS)}, and {RATE}"
        raise ParseError(1, " ".join(columns), expected)
    peak = average.replace("average", "peak")
    found = []
    for line, row in rows:
        size, value = whole(row[SIZE], line), decimal(row[average], line)
        # A run of a fixed duration has no peak, or a peak of 0.
        highest = decimal(row.get(peak, "0"), line)
        if highest and value > highest:
            raise ParseError(line, row[average], f"at most the peak, {row[peak]}")
        rate = value * UNITS[unit[1]]
        check_rate(size, rate, decimal(row[RATE], line), line)
        found.append(Bandwidth(size, rate))
    return found


def parse_latency(text: str) -> list[Latency]:
    """The rows of a test of latency."""
    columns, rows = _table(text)
    if TYPICAL not in columns:
        raise ParseError(1, " ".join(columns), f"a column {TYPICAL}")
    found = []
    for line, row in rows:
        value = decimal(row[TYPICAL], line)
        least, most = (decimal(row[name], line) for name in ("t_min[usec]", "t_max[usec]"))
        if not 0.0 < least <= value <= most:
            raise ParseError(line, row[TYPICAL], f"between {least:g} and {most:g}")
        found.append(Latency(whole(row[SIZE], line), value))
    return found


def check_rate(size: int, gbit_per_s: float, million_per_s: float, line: int) -> None:
    """ParseError unless a rate is the product of a message's bytes and messages per second: one of
    them is then in another unit or column.
    """
    product = million_per_s * size * 8 / 1e3
    if abs(gbit_per_s - product) > max(TOLERANCE * product, LEAST_DIFFERENCE):
        expected = f"{product:.4g} Gb/s, from {million_per_s:g} million messages of {size} bytes"
        raise ParseError(line, f"{gbit_per_s:.4g} Gb/s", expected)


def _table(text: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Columns of the one table, and its rows with their lines."""
    columns: list[str] = []
    rows: list[tuple[int, dict[str, str]]] = []
    lines = numbered(text)
    for line, content in lines:
        if content.lstrip().startswith(SIZE):
            columns = _columns(content, line)
            break
    for line, content in lines:
        words = content.split()
        if words[0][0].isdigit():
            if len(words) != len(columns):
                raise ParseError(line, content.strip(), f"{len(columns)} columns")
            rows.append((line, dict(zip(columns, words, strict=True))))
        elif set(content.strip()) <= set("-_"):
            break
        elif not words[0][0].isalpha():
            raise ParseError(line, content.strip(), "a row of numbers")
    if not rows:
        raise ParseError(text.count("\n") + 1, text.strip()[-80:], f"rows below {SIZE}")
    _no_second_table(lines)
    return columns, rows


def _columns(content: str, line: int) -> list[str]:
    found: list[str] = COLUMN.findall(content)
    if COLUMN.sub("", content).strip() or len(set(found)) != len(found) or found[0] != SIZE:
        raise ParseError(line, content.strip(), "names of columns, each once")
    return found


def _no_second_table(lines: Iterator[tuple[int, str]]) -> None:
    for line, content in lines:
        if content.lstrip().startswith(SIZE):
            raise ParseError(line, content.strip(), "one table")
