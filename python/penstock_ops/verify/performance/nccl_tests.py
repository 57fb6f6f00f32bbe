"""Text of nccl-tests' `all_reduce_perf` (NVIDIA/nccl-tests).

Lines of NCCL itself go to the same stream and may cut a row in two, which is an error here:
NCCL_DEBUG_FILE keeps them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock_ops.verify.checks.parsing import numbered, whole
from penstock_ops.verify.error import ParseError

RANK = re.compile(r"#\s+Rank\s+(\d+) Group\s+\d+ Pid\s+\d+ on\s+\S+ device\s+\d+ \[\S+\] .*")
COLUMNS = ("size", "count", "type", "redop", "root")
MEASURED = ("time", "algbw", "busbw", "#wrong")
UNITS = ["(B)", "(elements)", *("(us)", "(GB/s)", "(GB/s)") * 2]
BOUNDS = re.compile(r"# Out of bounds values : (\d{1,18}) (OK|FAILED)")
LOG = re.compile(r"[^\s:]+:\d+:\d+ .*NCCL.*")
"""host:pid:thread [device] NCCL INFO ..."""
NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?(e\+\d\d)?", re.ASCII)
NOT_CHECKED = "N/A"
ELEMENTS = (1, 2, 4, 8)
"""Bytes of an element of any type."""
TOLERANCE, COARSE = 0.02, 0.06
"""Of a value with four digits, and with the two of the form 1.2e+05."""
LEAST_DIFFERENCE = 0.011
"""GB/s: rates have two decimals."""


@dataclass(frozen=True, slots=True)
class Timing:
    microseconds: float
    bus_gb_per_s: float
    """Bytes per second times 2(n-1)/n for n ranks: comparable with the rate of links
    (nccl-tests, doc/PERFORMANCE.md).
    """
    wrong: int | None
    """Elements with a wrong value; None if they were not checked."""


@dataclass(frozen=True, slots=True)
class Row:
    bytes: int
    out_of_place: Timing
    in_place: Timing

    @property
    def microseconds(self) -> float:
        """Of the slower of both."""
        return max(self.out_of_place.microseconds, self.in_place.microseconds)

    @property
    def bus_gb_per_s(self) -> float:
        """Of the slower of both."""
        return min(self.out_of_place.bus_gb_per_s, self.in_place.bus_gb_per_s)


@dataclass(frozen=True, slots=True)
class Reductions:
    ranks: int
    rows: tuple[Row, ...]
    """By ascending size."""
    out_of_bounds: int
    """Wrong values by the tool's own count; at least 1 if it printed FAILED."""

    @property
    def wrong(self) -> int:
        timings = [each for row in self.rows for each in (row.out_of_place, row.in_place)]
        return max(self.out_of_bounds, sum(each.wrong or 0 for each in timings))

    @property
    def is_checked(self) -> bool:
        timings = [each for row in self.rows for each in (row.out_of_place, row.in_place)]
        return all(each.wrong is not None for each in timings)


def parse(text: str) -> Reductions:
    """All sizes of a run. ParseError for a cut row, for one whose time and rates contradict each
    other, and without the final count of wrong values.
    """
    ranks: list[int] = []
    columns: list[str] = []
    rows: list[Row] = []
    bounds: list[int] = []
    has_units = False
    for line, content in numbered(text):
        words = content.split()
        if match := RANK.fullmatch(content):
            ranks.append(int(match[1]))
        elif words[:3] == ["#", "size", "count"]:
            columns = _columns(words[1:], columns, line)
        elif words[:2] == ["#", "(B)"]:
            _units(words[1:], line)
            has_units = True
        elif match := BOUNDS.fullmatch(content):
            bounds.append(max(int(match[1]), match[2] == "FAILED"))
        elif words[0][0].isdigit() and not LOG.fullmatch(content):
            rows.append(_row(words, columns, len(ranks), line))
    last = text.count("\n") + 1
    if ranks != list(range(len(ranks))) or len(ranks) < 2:
        raise ParseError(last, f"ranks {ranks}", "a line for each of two or more ranks")
    if not rows or not has_units or len(bounds) != 1:
        raise ParseError(last, text.strip()[-80:], "rows, units, and one count of out of bounds")
    return reductions(len(ranks), rows, bounds[0], last)


def reductions(ranks: int, rows: list[Row], out_of_bounds: int, line: int) -> Reductions:
    """ParseError unless the rows' sizes ascend."""
    sizes = [row.bytes for row in rows]
    if sizes != sorted(set(sizes)):
        raise ParseError(line, f"sizes {sizes}"[:80], "ascending sizes")
    return Reductions(ranks, tuple(rows), out_of_bounds)


def check_timing(size: int, ranks: int, time: float, algorithm: float, bus: float) -> str:
    """What contradicts the time in microseconds and the two rates in GB/s; empty if nothing."""
    if time <= 0:
        return "a time above 0"
    rate = size / time / 1e3
    share = COARSE if time >= 1e5 else TOLERANCE
    if abs(algorithm - rate) > max(share * rate, LEAST_DIFFERENCE):
        return f"algbw {rate:.4g}, from {size} bytes in {time:g} us"
    expected = algorithm * 2 * (ranks - 1) / ranks
    if abs(bus - expected) > max(TOLERANCE * expected, LEAST_DIFFERENCE * 2):
        return f"busbw {expected:.4g}, of {ranks} ranks with algbw {algorithm:g}"
    return ""


def _columns(words: list[str], before: list[str], line: int) -> list[str]:
    """Options add columns, so they are read by name; each measured one comes twice."""
    is_known = tuple(words[: len(COLUMNS)]) == COLUMNS
    if before or not is_known or any(words.count(name) != 2 for name in MEASURED):
        raise ParseError(line, " ".join(words), "one line with the columns, out of and in place")
    return words


def _units(words: list[str], line: int) -> None:
    if words[: len(UNITS)] != UNITS and sorted(words) != sorted(UNITS):
        raise ParseError(line, " ".join(words), "(us) and (GB/s)")


def _row(words: list[str], columns: list[str], ranks: int, line: int) -> Row:
    if not columns or len(words) != len(columns):
        raise ParseError(line, " ".join(words), f"{len(columns)} columns below their names")
    size, count = whole(words[0], line), whole(words[1], line)
    if count == 0 or size % count or size // count not in ELEMENTS:
        raise ParseError(line, f"{size} bytes", f"bytes of {count} elements")
    second = len(columns) - columns[::-1].index("time") - 1
    return Row(
        size,
        _timing(dict(zip(columns[:second], words, strict=False)), size, ranks, line),
        _timing(dict(zip(columns[second:], words[second:], strict=True)), size, ranks, line),
    )


def _timing(cells: dict[str, str], size: int, ranks: int, line: int) -> Timing:
    if any(name not in cells for name in MEASURED):
        raise ParseError(line, " ".join(cells), "columns of both, out of and in place")
    time, algorithm, bus = (_number(cells[name], line) for name in MEASURED[:3])
    wrong = cells["#wrong"]
    if ranks < 2 or (problem := check_timing(size, ranks, time, algorithm, bus)):
        expected = problem if ranks >= 2 else "lines of ranks before the rows"
        raise ParseError(line, " ".join(cells.values()), expected)
    return Timing(time, bus, None if wrong == NOT_CHECKED else whole(wrong, line))


def _number(text: str, line: int) -> float:
    if not NUMBER.fullmatch(text):
        raise ParseError(line, text, "a number")
    return float(text)
