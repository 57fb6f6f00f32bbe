"""Gain of each medium compared with no tier: pure functions of the rounds' summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.rounds import Summary
from penstock_lab.bench.table import figure, render
from penstock_lab.bench.tiers.media import Medium

FOUND = 0.5
"""A medium counts as exhausted if later rounds find less than this share of their prompt tokens."""


@dataclass(frozen=True, slots=True)
class Gain:
    """One medium at one prompt length, in the rounds after the first."""

    medium: Medium
    length: int
    """Tokens of a prompt."""
    ttft_ms: float
    throughput: float
    """Input and output tokens per second."""
    cached_share: float
    gain: float | None
    """Throughput divided by the throughput without a tier; None if that was not measured."""


VALUES: Mapping[str, Callable[[Gain], float | None]] = {
    "ttft": lambda row: row.ttft_ms,
    "throughput": lambda row: row.throughput,
    "gain": lambda row: row.gain,
}
"""Quantity shown in each chart against the length."""


def gains(found: Mapping[Medium, Mapping[int, Summary]]) -> list[Gain]:
    """A gain for each medium and length with a complete round."""
    base = {
        length: figures.throughput
        for medium, by_length in found.items()
        for length, summary in by_length.items()
        if not medium.tiers and (figures := summary.steady)
    }
    return [
        Gain(
            medium,
            length,
            figures.ttft_ms,
            figures.throughput,
            figures.cached_share,
            figures.throughput / base[length] if base.get(length) else None,
        )
        for medium, by_length in found.items()
        for length, summary in by_length.items()
        if (figures := summary.steady)
    ]


def exhausted(rows: Sequence[Gain]) -> dict[Medium, int]:
    """For media with only a RAM tier: the shortest length from which on later rounds find less than
    half of their prompts, provided that they found them at a shorter length. The prompts repeat in
    the same order, so an LRU cache that is too small has no hits at all.
    """
    ends: dict[Medium, int] = {}
    for medium in dict.fromkeys(row.medium for row in rows if row.medium.only_ram):
        own = sorted((row for row in rows if row.medium == medium), key=lambda row: row.length)
        whole = [row.length for row in own if row.cached_share >= FOUND]
        longer = [row.length for row in own if whole and row.length > max(whole)]
        if longer:
            ends[medium] = longer[0]
    return ends


def lines(rows: Sequence[Gain]) -> Iterator[str]:
    headings = ("tokens", "TTFT ms", "total tok/s", "cached", "to none", "medium")
    ordered = sorted(rows, key=lambda row: row.length)
    yield from render(headings, [_cells(row) for row in ordered])
    for medium, length in exhausted(rows).items():
        yield f"{medium.name} is exhausted from {length:,} tokens on"


def _cells(row: Gain) -> list[str]:
    return [
        f"{row.length:,}",
        figure(row.ttft_ms),
        figure(row.throughput),
        f"{row.cached_share:.0%}",
        "-" if row.gain is None else f"{row.gain:.2f}x",
        row.medium.name,
    ]


def charts(rows: Sequence[Gain]) -> list[Plot]:
    """Charts of TTFT, throughput and gain against the length. With several bandwidths, also the
    gain against the bandwidth.
    """
    length = Axis("prompt length", "tokens", log=True)
    kinds = (
        ("ttft", "Time to first token", Axis("mean TTFT", "ms", log=True)),
        ("throughput", "Throughput", Axis("input and output", "tokens/s", log=True)),
        ("gain", "Gain over no tier", Axis("throughput", "times", log=True)),
    )
    found = [_plot(key, title, length, y, _by_medium(rows, key)) for key, title, y in kinds]
    limited = [row for row in rows if row.medium.rate]
    if len({row.medium.rate for row in limited}) > 1:
        bandwidth = Axis("bandwidth of the link", "MB/s", log=True)
        title = "Gain by bandwidth"
        found.append(_plot("bandwidth", title, bandwidth, kinds[2][2], _by_length(limited)))
    return found


def _plot(key: str, title: str, x: Axis, y: Axis, series: Sequence[Series]) -> Plot:
    named = ", ".join(each.name for each in series)
    return Plot(key, title, f"{title} against {x.title}: {named}", x, y, tuple(series))


def _by_medium(rows: Sequence[Gain], key: str) -> list[Series]:
    of = VALUES[key]
    found = []
    for style, medium in enumerate(dict.fromkeys(row.medium for row in rows)):
        points = [
            Point(row.length, y)
            for row in sorted(rows, key=lambda row: row.length)
            if row.medium == medium and (y := of(row)) is not None
        ]
        found.append(Series(medium.name, style, tuple(points)))
    return found


def _by_length(rows: Sequence[Gain]) -> list[Series]:
    found = []
    for style, length in enumerate(sorted({row.length for row in rows})):
        own = [row for row in rows if row.length == length and row.gain is not None]
        points = [Point((row.medium.rate or 0) / 1e6, row.gain or 0.0) for row in own]
        points.sort(key=lambda point: point.x)
        found.append(Series(f"{length:,} tokens", style, tuple(points)))
    return found
