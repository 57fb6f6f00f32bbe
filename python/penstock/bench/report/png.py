"""Charts as PNG files by matplotlib (the extra `plot`), with scales and series of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.report.charts import Chart, Gantt, Plot, Series, lane_parts
from penstock.bench.report.scale import Scale, fit
from penstock.bench.report.svg_primitives import STYLES, clean
from penstock.core import PenstockError

Axes = Any
"""matplotlib's type; the base install lacks the package."""
DPI = 144
# The light colours of the style sheet.
COLOURS = ("#0072b2", "#c94f00", "#008560", "#b0508a", "#a37200", "#2b87b8", "#30343a", "#7a5230")
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (9, 3)),
    (0, (4, 1.5, 1, 1.5, 1, 1.5)),
    (0, (3, 3)),
    (0, (8, 2, 3, 2)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "p", "_")
_PARTS = (
    ("client queue", "#8a9099", 0.22),
    ("to first token", "#c94f00", 0.92),
    ("decode", "#0072b2", 0.6),
)
_QUIET = "#59616b"
_LONGEST = 84
"""Characters of a title."""


class MissingExtraError(PenstockError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("drawing them needs matplotlib: pip install 'penstock[plot]'")


def write(charts: Sequence[Chart], stem: Path) -> dict[str, str]:
    """A file for each chart, `STEM-KEY.png`; returns file names by key.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError from error
    names = {}
    # Names of servers are no formulas.
    with mpl.rc_context({"text.parse_math": False, "font.size": 9, "axes.unicode_minus": False}):
        for chart in charts:
            figure = Figure(figsize=_size(chart), dpi=DPI, layout="constrained", facecolor="white")
            axes = figure.add_subplot()
            _gantt(axes, chart) if isinstance(chart, Gantt) else _plot(axes, chart)
            _frame(axes, chart)
            names[chart.key] = f"{stem.name}-{chart.key}.png"
            figure.savefig(stem.with_name(names[chart.key]), metadata={"Software": "Penstock"})
    return names


def _size(chart: Chart) -> tuple[float, float]:
    """Size in inches."""
    return (
        (7.2, min(1.8 + 0.12 * len(chart.lanes), 8.0)) if isinstance(chart, Gantt) else (7.2, 4.4)
    )


def _frame(axes: Axes, chart: Chart) -> None:
    axes.set_title(_cut(chart.title, _LONGEST), loc="left", fontweight="bold", wrap=True, pad=12)
    axes.set_xlabel(chart.x.title)
    axes.grid(visible=True, color="#e7e6e1", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, colors=_QUIET)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="best")
    if chart.notes:
        note = clean(" ".join(chart.notes))
        axes.annotate(
            note,
            (0, 0),
            (0, -40),
            "axes fraction",
            "offset points",
            fontsize=7,
            color=_QUIET,
            va="top",
            wrap=True,
        )


def _plot(axes: Axes, plot: Plot) -> None:
    points = [point for point in plot.points if math.isfinite(point.x) and math.isfinite(point.y)]
    xs = [point.x for point in points] + [end for point in points for end in point.x_range or ()]
    ys = [point.y for point in points] + [end for point in points for end in point.y_range or ()]
    _scale(axes, fit(plot.x, xs, 7), "x")
    _scale(axes, fit(plot.y, ys, 6), "y")
    axes.set_ylabel(plot.y.title)
    for series in plot.series:
        _series(axes, series)


def _scale(axes: Axes, scale: Scale, which: str) -> None:
    """Set the ticks and ends of the page's axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log" if scale.log else "linear")
    (axes.set_xlim if which == "x" else axes.set_ylim)(scale.low, scale.high)
    axis.set_ticks([value for value, _ in scale.ticks], labels=[label for _, label in scale.ticks])
    axis.set_minor_locator(_no_ticks())


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _series(axes: Axes, series: Series) -> None:
    colour, marker = COLOURS[series.style % STYLES], _MARKERS[series.style % STYLES]
    dashes = _DASHES[(series.style + series.style // STYLES) % STYLES]
    many = not series.line and len(series.points) > 40
    axes.plot(
        [point.x for point in series.points],
        [point.y for point in series.points],
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
    for point in series.points:
        if not (math.isfinite(point.x) and math.isfinite(point.y)):
            continue
        if point.x_range:
            axes.plot(point.x_range, (point.y, point.y), color=colour, linewidth=1, alpha=0.7)
        if point.y_range:
            axes.plot((point.x, point.x), point.y_range, color=colour, linewidth=1, alpha=0.7)
        text = f"{point.label} {point.emphasis}".strip()
        if text:
            weight = "bold" if point.emphasis else "normal"
            axes.annotate(
                clean(text),
                (point.x, point.y),
                (6, 5),
                textcoords="offset points",
                fontsize=8,
                fontweight=weight,
            )
        if point.emphasis:
            axes.plot(
                point.x, point.y, marker="o", markersize=13, fillstyle="none", color="#1d2126"
            )


def _cut(text: str, most: int) -> str:
    line = " ".join(clean(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _label(name: str) -> str:
    """A name for the legend; matplotlib leaves out those that begin with an underscore."""
    shown = _cut(name, 40)
    return f"\u200b{shown}" if shown.startswith("_") else shown


def _gantt(axes: Axes, chart: Gantt) -> None:
    for index, (name, colour, share) in enumerate(_PARTS):
        parts = [(row, lane_parts(lane)[index]) for row, lane in enumerate(chart.lanes)]
        known = [(row, part) for row, part in parts if part is not None]
        axes.barh(
            [row for row, _ in known],
            [part[1] - part[0] for _, part in known],
            left=[part[0] for _, part in known],
            height=share,
            color=colour,
            label=name,
        )
    failed = [
        (max((part[1] for part in lane_parts(lane) if part), default=lane.due), row)
        for row, lane in enumerate(chart.lanes)
        if lane.failure
    ]
    if failed:
        axes.plot(
            [time for time, _ in failed],
            [row for _, row in failed],
            "x",
            color="#1d2126",
            markersize=4,
            label="failed",
        )
    ends = [time for lane in chart.lanes for part in lane_parts(lane) for time in part or ()]
    _scale(axes, fit(chart.x, ends, 7), "x")
    axes.set_ylim(max(len(chart.lanes), 1) - 0.5, -0.5)
    every = max(1, math.ceil(len(chart.lanes) / 8))
    axes.set_yticks(
        range(0, len(chart.lanes), every),
        labels=[f"{lane.number:,}" for lane in chart.lanes[::every]],
    )
    axes.set_ylabel("Request")
