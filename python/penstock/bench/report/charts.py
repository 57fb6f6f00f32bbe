"""Charts as plain data. Their looks are up to a renderer (`svg`, `png`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Extent(Enum):
    """Rule for the ends of an axis."""

    AUTO = "logarithmic where the range is large"
    LINEAR = "linear"
    LOG = "logarithmic"
    FIXED = "linear, between `low` and `high`"


@dataclass(frozen=True, slots=True)
class Axis:
    """A quantity, its unit, and its layout."""

    label: str
    unit: str = ""
    extent: Extent = Extent.AUTO
    zero: bool = False
    """Whether a linear axis has to show zero."""
    low: float = 0.0
    """Lowest value of a logarithmic axis; smaller ones are drawn there."""
    high: float = 1.0
    ticks: tuple[float, ...] = ()
    """Positions of ticks, when not chosen by the scale: the values that were measured."""

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, slots=True)
class Point:
    """One point in a plot, in the units of its axes. Ranges are the spread over repeats."""

    x: float
    y: float
    label: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    emphasis: str = ""
    """Reason for a ring around the point (a knee); empty for none."""
    marked: bool = True


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one server or one load. `style` is its number: colour, dashes and marker follow
    from it.
    """

    name: str
    style: int
    points: tuple[Point, ...]
    line: bool = True
    light: bool = False
    """A companion of the series of the same style: thin, hollow markers, not in the legend."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Series over two axes."""

    key: str
    """File name of the picture, without its suffix."""
    title: str
    caption: str
    """The title where the workload is known from the place."""
    description: str
    """Text for readers who cannot see the chart."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> list[Point]:
        return [point for series in self.series for point in series.points]


@dataclass(frozen=True, slots=True)
class Lane:
    """One request in a Gantt chart, seconds. Until `sent` it waits in the client, until `first` in
    the server: queue and prefill, which a client cannot tell apart. Then it decodes."""

    number: int
    due: float
    sent: float
    first: float
    ended: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Gantt:
    """Requests below each other, time to the right."""

    key: str
    title: str
    caption: str
    description: str
    lanes: tuple[Lane, ...]
    notes: tuple[str, ...] = ()
    x: Axis = Axis("Time", "s", Extent.LINEAR, zero=True)


Chart = Plot | Gantt

Stretch = tuple[float, float]


def lane_parts(lane: Lane) -> tuple[Stretch | None, Stretch | None, Stretch | None]:
    """Client queue, time to first token and decode of a request; None where absent or unknown.

    A request without a first event has no decode: the second part lasts until its end.
    """
    first = lane.first if math.isfinite(lane.first) else lane.ended
    return (
        _stretch(lane.due, lane.sent),
        _stretch(lane.sent, first),
        _stretch(lane.first, lane.ended),
    )


def _stretch(start: float, end: float) -> Stretch | None:
    return (start, end) if math.isfinite(start) and math.isfinite(end) and end > start else None
