"""Charts with the cumulative distributions of the four latencies (TTFT, TPOT, ITL, E2EL)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.report.request_rows import LATENCIES, Latency, RequestRow, pooled
from penstock_lab.bench.report.runs import Collection, Run
from penstock_lab.bench.report.wording import at, human, listing, slug, time_unit
from penstock_lab.bench.stats import percentile

WIDE_FROM = 8.0
"""Ratio of largest to smallest value above which the axis is logarithmic."""
EXACT = 400
"""Maximum number of values drawn individually; more are drawn as quantiles."""
NAMED = (50.0, 90.0, 99.0)
"""Percentiles with a marker on the curve. They are computed exactly from all values."""
# Denser towards the tail, where the curves of servers diverge.
_GRID = (
    *(index * 0.5 for index in range(180)),
    *(90 + index * 0.1 for index in range(90)),
    *(99 + index * 0.02 for index in range(50)),
    100.0,
)

Group = tuple[str, int, Sequence[Run]]
"""One curve: legend name, style, and the runs whose requests it combines."""


def by_server(collection: Collection, workload: str, point: float | None) -> list[Plot]:
    """A chart for each latency at one load, with a curve for each server. A curve combines the
    requests of all repeats.
    """
    groups = [
        (server, collection.styles[server], collection.of(workload, server, point))
        for server in collection.servers
    ]
    return _plots(groups, workload, collection.place(workload, point))


def by_load(collection: Collection, workload: str, points: Sequence[float]) -> list[Plot]:
    """A chart for each latency with a curve for each load, for a workload with a single server."""
    axis = collection.axis(workload)
    groups = [
        (at(axis, point), index, collection.of(workload, None, point))
        for index, point in enumerate(points)
    ]
    return _plots(groups, workload, "")


def _plots(groups: Sequence[Group], workload: str, place: str) -> list[Plot]:
    requests = [
        (name, style, [request for run in runs for request in run.requests or ()])
        for name, style, runs in groups
    ]
    plots = [_plot(requests, workload, place, latency) for latency in LATENCIES]
    return [plot for plot in plots if plot is not None]


def _plot(
    groups: Sequence[tuple[str, int, Sequence[RequestRow]]],
    workload: str,
    place: str,
    latency: Latency,
) -> Plot | None:
    samples = [(name, style, pooled(requests, latency)) for name, style, requests in groups]
    samples = [(name, style, values) for name, style, values in samples if values]
    if not samples:
        return None
    factor, unit = time_unit(max(percentile(values, 99) for _, _, values in samples))
    where = f"{workload}, {place}" if place else workload
    medians = [
        f"{name} {human(percentile(values, 50) * factor)} and "
        f"{human(percentile(values, 99) * factor)} {unit}"
        for name, _, values in samples
    ]
    whole = "Gaps" if latency.key == "itl" else "Requests"
    return Plot(
        key=slug("cdf", latency.key, workload, place),
        title=f"{where}: distribution of {latency.name}",
        description=f"{latency.long}. P50 and P99: {listing(medians, 12)}.",
        x=_axis(latency.name, unit, factor, [values for _, _, values in samples]),
        y=Axis(f"{whole} at most so slow", "%", ends=(0, 100)),
        series=tuple(_series(name, style, values, factor) for name, style, values in samples),
        notes=("Marks at P50, P90 and P99. Successful requests of all repeats.",),
    )


def _axis(name: str, unit: str, factor: float, samples: Sequence[Sequence[float]]) -> Axis:
    """The axis for latencies. It is logarithmic if the slowest values are so large that a linear
    axis would squeeze the curves. It then starts at the first percentile, because tokens that
    arrive together have gaps of zero.
    """
    low = min(percentile(values, 1) for values in samples)
    wide = low > 0 and max(values[-1] for values in samples) >= WIDE_FROM * low
    return Axis(name, unit, log=True, low=low * factor) if wide else Axis(name, unit)


def _series(name: str, style: int, values: Sequence[float], factor: float) -> Series:
    places = quantiles(values)
    points = tuple(Point(value * factor, percent, marked=named) for value, percent, named in places)
    return Series(name, style, points)


def quantiles(ordered: Sequence[float]) -> list[tuple[float, float, bool]]:
    """Points of the cumulative distribution of the ascending values `ordered`: (value, percent,
    whether `percent` is in NAMED).

    Percentiles interpolate linearly, so for a small sample the lines between points are exact, too.
    """
    if not ordered:
        return []
    if len(ordered) == 1:
        return [(ordered[0], 100.0, True)]
    if len(ordered) <= EXACT:
        last = len(ordered) - 1
        places = {100 * index / last: value for index, value in enumerate(ordered)}
    else:
        places = {percent: percentile(ordered, percent) for percent in _GRID}
    places.update({percent: percentile(ordered, percent) for percent in NAMED})
    return [(value, percent, percent in NAMED) for percent, value in sorted(places.items())]
