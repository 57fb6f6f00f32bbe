"""Formats text for a report: numbers, names of axes and points, file names, sanitised text.

Numbers have three significant digits and grouped thousands, and are never NaN.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

NOTHING = "–"


def human(value: float | None) -> str:
    """A number with three significant digits: 0.0123, 1.23, 12.3, 123. From 1,000 on it is rounded
    to an integer, such as 1,234. Below 1e-4 and from 1e15 on it has an exponent.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.2e}"
    if size >= 999.5:
        return f"{value:,.0f}"
    if size == 0:
        return "0"
    # Use the rounded size: 0.9996 has as many decimals as 1.
    decimals = 2 - math.floor(math.log10(float(f"{size:.3g}")))
    return f"{value:.{min(max(decimals, 0), 6)}f}"


def times(ratio: float | None) -> str:
    """A ratio with a multiplication sign."""
    return NOTHING if ratio is None or not math.isfinite(ratio) else f"{_ratio(ratio)}×"


def _ratio(ratio: float) -> str:
    if 0.095 <= abs(ratio) < 99.5:
        return f"{ratio:.2f}"
    return f"{ratio:.2g}" if 1e-4 < abs(ratio) < 1 else human(ratio)


def times_range(low: float, high: float) -> str:
    """A range of ratios, or one number if both ends print equally."""
    ends = _ratio(low), _ratio(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def human_range(low: float, high: float) -> str:
    ends = human(low), human(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def plain(value: float) -> str:
    """A number chosen by a user (a concurrency, a rate), without a trailing `.0`."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:g}"


def count(number: int, one: str, many: str = "") -> str:
    """For example `1 request` or `1,234 requests`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listing(words: Sequence[str], most: int = 8) -> str:
    """For example `a, b and c`. Items beyond `most` are only counted."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


@dataclass(frozen=True, slots=True)
class Kind:
    """How the report describes a workload's axis, such as the concurrency."""

    name: str
    title: str
    unit: str = ""
    hint: str = ""
    lighter: float = 1
    """Sign of the order from light to heavy loads: -1 if smaller numbers mean a heavier load."""


class _Axes(dict[str, Kind]):
    """Descriptions of axes by key. An unknown axis is shown under its key."""

    def __missing__(self, axis: str) -> Kind:
        return Kind(axis, axis)


AXES = _Axes(
    concurrency=Kind("concurrency", "Concurrency", "requests"),
    rate=Kind("request rate", "Request rate", "req/s"),
    time_scale=Kind("time scale", "Time scale", "", " A smaller time scale is a heavier load.", -1),
    round=Kind("round", "Round"),
)


def at(axis: str | None, point: float | None) -> str:
    """A point on an axis as text, such as `concurrency 8`; empty without a point."""
    if axis is None or point is None:
        return ""
    unit = f" {AXES[axis].unit}" if axis == "rate" else ""
    return f"{AXES[axis].name} {plain(point)}{unit}"


def date_words(date: object) -> str:
    """A result file's date, such as `20261120-101500`, as `2026-11-20 10:15:00`. Any other text
    stays unchanged.
    """
    found = re.fullmatch(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", str(date))
    return "{}-{}-{} {}:{}".format(*found.groups()) if found else str(date)


def slug(*parts: str) -> str:
    """A file name of a-z, 0-9, `.` and `-`, made from `parts`."""
    folded = (
        unicodedata.normalize("NFKD", "-".join(filter(None, parts)))
        .encode("ascii", "ignore")
        .decode()
    )
    return re.sub(r"[^a-z0-9.]+", "-", folded.lower()).strip("-.")[:80] or "chart"


def time_unit(largest_ms: float) -> tuple[float, str]:
    """Unit for an axis up to `largest_ms`, preceded by its factor from milliseconds: seconds from
    5,000 ms on.
    """
    return (0.001, "s") if largest_ms >= 5_000 else (1.0, "ms")


def clean(text: str) -> str:
    """`text` with a replacement character for each one that XML or UTF-8 cannot represent: control
    characters and lone surrogates.
    """
    return "".join(character if _printable(ord(character)) else "\ufffd" for character in text)


def _printable(code: int) -> bool:
    if code < 0x20:
        return code in (0x9, 0xA, 0xD)
    return not (0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE)
