"""Charts as plain data; `drawing` makes pictures of them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_lab.bench.report.request_rows import RequestRow

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """A quantity, its unit, and its layout."""

    label: str
    unit: str = ""
    log: bool | None = None
    """None: logarithmic where the range is large."""
    zero: bool = False
    """Whether a linear axis has to show zero."""
    low: float = 0.0
    """Lowest value of a logarithmic axis."""
    ends: Range | None = None
    """Ends of a linear axis, when not those of the values."""
    ticks: tuple[float, ...] = ()
    """Positions of ticks, when not chosen by the range: the values that were measured."""

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, slots=True)
class Point:
    """One point in a plot, in the units of its axes. Ranges are the spread over repeats."""

    x: float
    y: float
    label: str = ""
    x_range: Range | None = None
    y_range: Range | None = None
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
    description: str
    """Text for readers who cannot see the chart."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gantt:
    """Requests below each other, time to the right."""

    key: str
    title: str
    description: str
    requests: tuple[RequestRow, ...]
    notes: tuple[str, ...] = ()


Chart = Plot | Gantt
