"""Charts as plain data. `drawing` renders them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_lab.bench.report.request_rows import RequestRow

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a plot: its quantity, unit and scale."""

    label: str
    unit: str = ""
    log: bool | None = None
    """Whether the axis is logarithmic; None: if the range of the values is large."""
    zero: bool = False
    """Whether a linear axis must include zero."""
    low: float = 0.0
    """Lower end of a logarithmic axis; smaller values are not shown."""
    ends: Range | None = None
    """Ends of a linear axis; None: the range of the values."""
    ticks: tuple[float, ...] = ()
    """Positions of ticks, such as the measured values; empty: chosen automatically."""

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a plot, in the units of the axes. `x_range` and `y_range` are the smallest and
    largest value over the repeats.
    """

    x: float
    y: float
    label: str = ""
    x_range: Range | None = None
    y_range: Range | None = None
    emphasis: str = ""
    """Reason for a ring around the point, such as `knee`; empty for no ring."""
    marked: bool = True


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one server or one load. `style` is a number that determines colour, dashes and
    marker.
    """

    name: str
    style: int
    points: tuple[Point, ...]
    line: bool = True
    light: bool = False
    """Whether this is a companion of another series with the same style. It has a thin line and
    hollow markers, and is not in the legend.
    """


@dataclass(frozen=True, slots=True)
class Plot:
    """Series over two axes."""

    key: str
    """File name of the picture, without its suffix."""
    title: str
    description: str
    """Alternative text for readers who cannot see the chart."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gantt:
    """A Gantt chart: a row for each request, with time on the horizontal axis."""

    key: str
    title: str
    description: str
    requests: tuple[RequestRow, ...]
    notes: tuple[str, ...] = ()


Chart = Plot | Gantt
