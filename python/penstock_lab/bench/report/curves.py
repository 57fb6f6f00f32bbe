"""Charts of a workload that was measured at several loads: throughput against TTFT, and latencies
against load.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_lab.bench.compare.summary import Spread
from penstock_lab.bench.knee import find_knee
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.report.request_rows import LATENCIES, Latency
from penstock_lab.bench.report.runs import Collection, spread, tail_percentile
from penstock_lab.bench.report.wording import AXES, human, listing, plain, slug, time_unit

FULLY_LABELLED = 3
"""With at most this many servers, every point has a label; with more, only ends and knees do."""


def knee(collection: Collection, workload: str, server: str) -> float | None:
    """The load beyond which more load yields little throughput on one server, or None."""
    if collection.axis(workload) not in ("concurrency", "rate"):
        return None
    points = [
        (point, value)
        for point in collection.points(workload)
        for run in collection.of(workload, server, point)
        if (value := run.value("output_throughput")) is not None
    ]
    found = find_knee(points)
    return found.load if found else None


def throughput_against_ttft(collection: Collection, workload: str) -> Plot | None:
    """One curve for each server, with one point for each load. None unless the workload was
    measured at two or more concurrencies or request rates.
    """
    axis = collection.axis(workload)
    if axis not in ("concurrency", "rate") or len(collection.points(workload)) < 2:
        return None
    slowest = max((run.value("median_ttft_ms") or 0 for run in collection.of(workload)), default=0)
    factor, unit = time_unit(slowest)
    series = [_curve(collection, workload, server, factor) for server in collection.servers]
    series = [one for one in series if one.points]
    if not series:
        return None
    return Plot(
        key=slug("curve", workload),
        title=f"{workload}: throughput against TTFT",
        description=_curve_words(series, axis, unit),
        x=Axis("Median time to first token", unit),
        y=Axis("Output throughput", "tok/s", log=False, zero=True),
        series=tuple(series),
        notes=(
            f"Numbers at the points are the {AXES[axis].name}. Up and to the left is better.",
            "Bars are the spread over repeats; a ring marks the knee.",
        ),
    )


def _curve(collection: Collection, workload: str, server: str, factor: float) -> Series:
    loads = collection.points(workload)
    bend = knee(collection, workload, server)
    every = len(collection.servers) <= FULLY_LABELLED
    points = []
    for load in loads:
        runs = collection.of(workload, server, load)
        ttft, rate = spread(runs, "median_ttft_ms"), spread(runs, "output_throughput")
        if ttft is None or rate is None:
            continue
        named = every or load in (loads[0], loads[-1], bend)
        label = plain(load) if named else ""
        if named and any(run.partial for run in runs):
            label += " partial"
        points.append(
            Point(
                ttft.median * factor,
                rate.median,
                label,
                _scaled(ttft, factor),
                rate.range,
                emphasis="knee" if load == bend else "",
            )
        )
    return Series(server, collection.styles[server], tuple(points))


def _scaled(one: Spread, factor: float) -> tuple[float, float] | None:
    return (one.low * factor, one.high * factor) if one.range else None


def _curve_words(series: Sequence[Series], axis: str, unit: str) -> str:
    peaks = []
    for one in series:
        best = max(one.points, key=lambda point: point.y)
        peaks.append(
            f"{one.name} peaks at {human(best.y)} tok/s with a median TTFT of {human(best.x)} "
            f"{unit}"
        )
    return f"One curve for each server, one point for each {AXES[axis].name}. {listing(peaks, 12)}."


def latencies_against_load(collection: Collection, workload: str) -> list[Plot]:
    """A plot for each latency: its median and highest percentile at each point of the workload's
    axis. Empty if there are fewer than two points.
    """
    axis = collection.axis(workload)
    if axis is None or len(collection.points(workload)) < 2:
        return []
    plots = [_latency_plot(collection, workload, axis, latency) for latency in LATENCIES]
    return [plot for plot in plots if plot is not None]


def _latency_plot(
    collection: Collection, workload: str, axis: str, latency: Latency
) -> Plot | None:
    tail = tail_percentile(collection.of(workload), latency.key)
    keys = [f"median_{latency.key}_ms"] + ([f"{tail}_{latency.key}_ms"] if tail else [])
    highest = max(
        (run.value(key) or 0 for run in collection.of(workload) for key in keys), default=0
    )
    factor, unit = time_unit(highest)
    series = [
        Series(server, collection.styles[server], points, light=key != keys[0])
        for key in reversed(keys)
        for server in collection.servers
        if (points := _over_axis(collection, workload, server, key, factor))
    ]
    if not series:
        return None
    thin = f"; thin with hollow marks: {tail.upper()}" if tail else ""
    kind, loads = AXES[axis], collection.points(workload)
    log = axis != "round" and 0 < 8 * loads[0] <= loads[-1]
    return Plot(
        key=slug(latency.key, "against", axis, workload),
        title=f"{workload}: {latency.name} against {kind.name}",
        description=f"{latency.long} for each server over the {kind.name}.",
        x=Axis(kind.title, kind.unit, log, ticks=tuple(loads)),
        y=Axis(latency.name, unit),
        series=tuple(series),
        notes=(f"Thick: median{thin}. Bars are the spread over repeats.{kind.hint}",),
    )


def _over_axis(
    collection: Collection, workload: str, server: str, key: str, factor: float
) -> tuple[Point, ...]:
    points = []
    for load in collection.points(workload):
        found = spread(collection.of(workload, server, load), key)
        if found is not None:
            points.append(Point(load, found.median * factor, y_range=_scaled(found, factor)))
    return tuple(points)


def shown_points(collection: Collection, workload: str) -> list[float]:
    """Up to three loads for the charts of single requests: the lightest, a knee or else the middle
    one, and the heaviest.
    """
    points = collection.points(workload)
    if len(points) <= 3:
        return points
    bends = [knee(collection, workload, server) for server in collection.servers]
    inner = next(
        (bend for bend in bends if bend is not None and bend in points[1:-1]),
        points[len(points) // 2],
    )
    return [points[0], inner, points[-1]]
