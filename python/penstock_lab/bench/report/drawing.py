"""Renders charts with matplotlib (the extra `plot`): SVG for the page, PNG for other uses."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench.report.charts import Axis, Chart, Gantt, Plot, Range, Series
from penstock_lab.bench.report.request_rows import RequestRow
from penstock_lab.bench.report.wording import clean, plain

Axes = Any
"""matplotlib's type. The base install does not include the package."""
COLOURS = ("#0072b2", "#c94f00", "#008560", "#b0508a", "#a37200", "#2b87b8", "#30343a", "#7a5230")
DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (9, 3)),
    (0, (4, 1.5, 1, 1.5, 1, 1.5)),
    (0, (3, 3)),
    (0, (8, 2, 3, 2)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "_")
STYLES = len(COLOURS)
PARTS = (
    ("client queue", "#8a9099", 0.22),
    ("to first token", "#c94f00", 0.92),
    ("decode", "#0072b2", 0.6),
)
"""Phases of a request in a Gantt chart: name, colour, and height of the bar as a share of the row's
height, so that colour is not the only cue.
"""
DARK, QUIET = "#1d2126", "#59616b"
LOG_FROM = 40.0
"""Ratio of largest to smallest value above which an axis is logarithmic by default."""
LARGEST = 1e100
"""Values from this size on are not drawn."""
LONGEST_TITLE, LONGEST_NAME = 84, 40
"""Maximum lengths in characters of a chart's title and of a name in its legend."""
MANY = 40
"""A series of dots without a line has small markers if it has more points than this."""
SETTINGS: Any = {
    "text.parse_math": False,  # Server names are not formulas.
    "font.size": 9,
    "axes.unicode_minus": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",  # Deterministic output for the same chart.
}


class MissingExtraError(PenstockError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("drawing charts needs matplotlib: pip install 'penstock[plot]'")


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart in both formats."""

    png: bytes
    svg: bytes

    @property
    def data_url(self) -> str:
        """The SVG as an image source, which isolates its names and styles."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"


def draw(charts: Iterable[Chart]) -> dict[str, Picture]:
    """Pictures by the key of their chart.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError from error
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # Missing glyphs show as boxes.
        return {chart.key: _picture(chart) for chart in charts}


def write(pictures: Mapping[str, Picture], stem: Path) -> dict[str, str]:
    """Write each picture to `STEM-KEY.png`; returns the file names by chart key."""
    names = {key: f"{stem.name}-{key}.png" for key in pictures}
    for key, name in names.items():
        stem.with_name(name).write_bytes(pictures[key].png)
    return names


def _picture(chart: Chart) -> Picture:
    from matplotlib.figure import Figure

    rows = len(chart.requests) if isinstance(chart, Gantt) else 0
    height = min(1.8 + 0.12 * rows, 8.0) if isinstance(chart, Gantt) else 4.4
    figure = Figure(figsize=(7.2, height), dpi=144, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    if isinstance(chart, Gantt):
        _gantt(axes, chart, pitch=(72 * height - 110) / max(rows, 1))
    else:
        _plot(axes, chart)
    _frame(axes, chart)
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": "Penstock"})
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "Penstock"})
    return Picture(png.getvalue(), svg.getvalue())


def _frame(axes: Axes, chart: Chart) -> None:
    title = _cut(chart.title, LONGEST_TITLE)
    axes.set_title(title, loc="left", fontweight="bold", wrap=True, pad=12)
    axes.grid(visible=True, color="#e7e6e1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors=QUIET)
    if axes.get_legend_handles_labels()[0]:
        # A legend outside the axes hides no points.
        axes.figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside lower left")
    note = clean(" ".join(chart.notes))
    place: Any = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(note, (0, 0), (0, -40), **place, fontsize=7, color=QUIET, va="top", wrap=True)


def _plot(axes: Axes, plot: Plot) -> None:
    for series in plot.series:
        _series(axes, series)
    points = [point for series in plot.series for point in series.points]
    known = [point for point in points if _known(point.x, point.y)]
    xs = [x for point in known for x in (point.x, *(point.x_range or ()))]
    ys = [y for point in known for y in (point.y, *(point.y_range or ()))]
    _scale(axes, "x", plot.x, xs)
    _scale(axes, "y", plot.y, ys)


def _series(axes: Axes, series: Series) -> None:
    colour, marker = COLOURS[series.style % STYLES], MARKERS[series.style % STYLES]
    dashes = DASHES[(series.style + series.style // STYLES) % STYLES]
    many = not series.line and len(series.points) > MANY
    known = [_known(point.x, point.y) for point in series.points]
    axes.plot(
        [point.x if here else math.nan for point, here in zip(series.points, known, strict=True)],
        [point.y if here else math.nan for point, here in zip(series.points, known, strict=True)],
        color=colour,
        linestyle=dashes if series.line else "none",
        linewidth=0.9 if series.light else 1.7,
        marker=marker,
        markersize=2.2 if many else 5,
        markerfacecolor="white" if series.light else colour,
        markevery=[index for index, point in enumerate(series.points) if point.marked],
        alpha=0.75 if many else 1,
        label="_nolegend_" if series.light else _label(series.name),
    )
    for point in (point for point, here in zip(series.points, known, strict=True) if here):
        for xs, ys in ((point.x_range, (point.y,) * 2), ((point.x,) * 2, point.y_range)):
            if xs and ys:
                axes.plot(xs, ys, color=colour, linewidth=1, alpha=0.7)
        if point.emphasis:
            axes.plot(point.x, point.y, "o", markersize=13, fillstyle="none", color=DARK)
        if text := clean(f"{point.label} {point.emphasis}").strip():
            weight = "bold" if point.emphasis else "normal"
            place: Any = {"xytext": (6, 5), "textcoords": "offset points"}
            axes.annotate(text, (point.x, point.y), **place, fontsize=8, fontweight=weight)


def _known(*values: float) -> bool:
    """Whether all numbers can be drawn; NaN and infinity cannot."""
    return all(abs(value) < LARGEST for value in values)


def _scale(axes: Axes, which: str, axis: Axis, values: Sequence[float]) -> None:
    """Choose linear or logarithmic scale, ends and ticks of an axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    own = axes.xaxis if which == "x" else axes.yaxis
    positive = [value for value in values if value > max(axis.low, 1 / LARGEST)]
    log = axis.log
    if log is None and positive:
        log = len(positive) == len(values) and max(positive) >= LOG_FROM * min(positive)
    axes.set(**{f"{which}label": clean(axis.title)})
    if log and positive:
        low, high = min(positive) / 1.15, max(positive) * 1.15
        axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
        own.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 500 * low else (1,)))
    elif axis.ends:
        axes.set(**{f"{which}lim": axis.ends})
    elif values and (axis.zero or 0 < min(values) < 0.4 * max(values)):
        low, high = min(*values, 0.0), max(*values, 0.0)
        axes.set(**{f"{which}lim": (1.05 * low, 1.05 * high or 1.0)})
    own.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if axis.ticks:
        own.set_ticks(axis.ticks, labels=[plain(value) for value in axis.ticks])
    own.set_minor_locator(NullLocator())


def _cut(text: str, most: int) -> str:
    line = " ".join(clean(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _label(name: str) -> str:
    """A name for the legend. matplotlib omits names that start with an underscore."""
    shown = _cut(name, LONGEST_NAME)
    return f"\u200b{shown}" if shown.startswith("_") else shown


def _gantt(axes: Axes, chart: Gantt, pitch: float) -> None:
    """Draw the chart with rows of `pitch` points (1/72 inch) in height."""
    rows = len(chart.requests)
    parts = [request_parts(request) for request in chart.requests]
    for index, (name, colour, share) in enumerate(PARTS):
        # One broken line, because a shape for each request would make the file large.
        spans = [part[index] or (math.nan, math.nan) for part in parts]
        xs = [x for span in spans for x in (*span, math.nan)]
        ys = [row for row in range(rows) for _ in range(3)]
        axes.plot(xs, ys, color=colour, linewidth=pitch * share, label=name, solid_capstyle="butt")
    failed = [
        (max((span[1] for span in part if span), default=request.due), row)
        for row, (request, part) in enumerate(zip(chart.requests, parts, strict=True))
        if request.failure
    ]
    xs = [time if _known(time) else math.nan for time, _ in failed]
    ys = [row for _, row in failed]
    axes.plot(xs, ys, "x", color=DARK, markersize=4, label="failed" if failed else "_nolegend_")
    ends = [time for part in parts for span in part for time in span or ()]
    _scale(axes, "x", Axis("Time", "s", log=False, zero=True), ends)
    axes.set_ylim(max(rows, 1) - 0.5, -0.5)
    numbered = range(0, rows, max(1, math.ceil(rows / 8)))
    axes.set_yticks(numbered, labels=[f"{row + 1:,}" for row in numbered])
    axes.set_ylabel("Request")


def request_parts(request: RequestRow) -> tuple[Range | None, Range | None, Range | None]:
    """(start, end) of the three phases of a request: client queue, time to first token, decode.
    None for a phase that is absent or unknown.

    A request without a first event has no decode phase; its second phase lasts until its end.
    """
    first = request.first if math.isfinite(request.first) else request.ended
    return (
        _span(request.due, request.sent),
        _span(request.sent, first),
        _span(request.first, request.ended),
    )


def _span(start: float, end: float) -> Range | None:
    return (start, end) if _known(start, end) and end > start else None
