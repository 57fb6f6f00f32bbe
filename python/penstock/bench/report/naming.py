"""Names of axes, points, picture files and units."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from penstock.bench.report.numbers import plain


@dataclass(frozen=True, slots=True)
class Kind:
    """An axis in words."""

    name: str
    title: str
    unit: str = ""
    hint: str = ""
    lighter: float = 1
    """-1: smaller numbers are a heavier load."""


class _Axes(dict[str, Kind]):
    """Unknown axes keep the name in the file."""

    def __missing__(self, axis: str) -> Kind:
        return Kind(axis, axis)


AXES = _Axes(
    concurrency=Kind("concurrency", "Concurrency", "requests"),
    rate=Kind("request rate", "Request rate", "req/s"),
    time_scale=Kind("time scale", "Time scale", "", " A smaller time scale is a heavier load.", -1),
    round=Kind("round", "Round"),
)


def at(axis: str | None, point: float | None) -> str:
    """A point on an axis, `concurrency 8`; empty without one."""
    if axis is None or point is None:
        return ""
    unit = f" {AXES[axis].unit}" if axis == "rate" else ""
    return f"{AXES[axis].name} {plain(point)}{unit}"


def date_words(date: object) -> str:
    """A date of a result file, `20261120-101500`, or any other, as people write it."""
    found = re.fullmatch(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", str(date))
    return "{}-{}-{} {}:{}".format(*found.groups()) if found else str(date)


def slug(*parts: str) -> str:
    """A file name of harmless characters."""
    folded = (
        unicodedata.normalize("NFKD", "-".join(filter(None, parts)))
        .encode("ascii", "ignore")
        .decode()
    )
    return re.sub(r"[^a-z0-9.]+", "-", folded.lower()).strip("-.")[:80] or "chart"


def time_unit(largest_ms: float) -> tuple[float, str]:
    """Factor from milliseconds, and the unit to show: seconds when ticks would need five digits."""
    return (0.001, "s") if largest_ms >= 5_000 else (1.0, "ms")
