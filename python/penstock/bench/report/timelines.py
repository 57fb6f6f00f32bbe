"""Charts over the time of one run: TTFT request by request, and the requests below each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.bench.report.charts import Axis, Extent, Gantt, Lane, Plot, Point, Series
from penstock.bench.report.naming import slug, time_unit
from penstock.bench.report.numbers import count
from penstock.bench.report.runs import Collection, Run
from penstock.bench.report.trips import Trip

MOST_DOTS = 1200
"""Dots in one chart; more become the fastest and slowest of every few requests."""
MOST_LANES = 200
LEAST_LANES = 40
LANES_ON_A_PAGE = 5000


def example(runs: Sequence[Run]) -> Run | None:
    """The run whose requests are drawn one by one: the first that is complete and has them."""
    detailed = [run for run in runs if run.trips]
    return next((run for run in detailed if not run.partial), detailed[0] if detailed else None)


def ttft_over_time(collection: Collection, workload: str, point: float | None) -> Plot | None:
    """Time to first token against the time of sending, a series for each server, the first repeat
    of each.
    """
    examples = [example(collection.of(workload, server, point)) for server in collection.servers]
    chosen = [run for run in examples if run is not None]
    answered = [(run, [trip for trip in run.trips or () if _answered(trip)]) for run in chosen]
    answered = [(run, trips) for run, trips in answered if trips]
    if not answered:
        return None
    factor, unit = time_unit(max(trip.ttft for _, trips in answered for trip in trips) * 1000)
    most = max(MOST_DOTS // len(answered), 50)
    series = [
        Series(
            run.server, collection.styles[run.server], _dots(trips, 1000 * factor, most), line=False
        )
        for run, trips in answered
    ]
    place = collection.place(workload, point)
    where = f"{workload}, {place}" if place else workload
    return Plot(
        key=slug("ttft-over-time", workload, place),
        title=f"{where}: TTFT over time",
        caption=f"TTFT over time{f', {place}' if place else ''}",
        description="Time to first token of each successful request against the time at which it was sent.",
        x=Axis("Sent, after the start of the load", "s", Extent.LINEAR, zero=True),
        y=Axis("TTFT", unit),
        series=tuple(series),
        notes=_dot_notes(answered, most),
    )


def _answered(trip: Trip) -> bool:
    return not trip.failure and math.isfinite(trip.sent) and math.isfinite(trip.ttft)


def _dots(trips: Sequence[Trip], factor: float, most: int) -> tuple[Point, ...]:
    ordered = sorted(trips, key=lambda trip: trip.sent)
    if len(ordered) > most:
        size = math.ceil(2 * len(ordered) / most)
        buckets = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        ordered = [end for bucket in buckets for end in _extremes(bucket)]
    return tuple(Point(trip.sent, trip.ttft * factor) for trip in ordered)


def _extremes(bucket: Sequence[Trip]) -> list[Trip]:
    ends = [min(bucket, key=lambda trip: trip.ttft), max(bucket, key=lambda trip: trip.ttft)]
    return sorted(ends, key=lambda trip: trip.sent) if len(bucket) > 1 else ends[:1]


def _dot_notes(answered: Sequence[tuple[Run, list[Trip]]], most: int) -> tuple[str, ...]:
    notes = ["Successful requests of one repeat."]
    longest = max(len(trips) for _, trips in answered)
    if longest > most:
        notes.append(
            f"The fastest and the slowest of every {math.ceil(2 * longest / most)} requests."
        )
    if any(run.partial for run, _ in answered):
        notes.append("Partial runs among them.")
    failed = sum(trip.failure != "" for run, _ in answered for trip in run.trips or ())
    if failed:
        notes.append(f"{count(failed, 'failed request')} left out.")
    return tuple(notes)


def lanes_each(charts: int) -> int:
    """Rows for each of so many Gantt charts, so that a page of many stays small."""
    return max(LEAST_LANES, min(MOST_LANES, LANES_ON_A_PAGE // max(charts, 1)))


def gantt(collection: Collection, run: Run, most: int) -> Gantt | None:
    """The first requests of a run: client queue, time to first token, decode. None without detail."""
    known = [trip for trip in run.trips or () if math.isfinite(trip.due)]
    if not known:
        return None
    ordered = sorted(
        known, key=lambda trip: (trip.due, trip.sent if math.isfinite(trip.sent) else math.inf)
    )
    origin = min(0.0, ordered[0].due)
    lanes = tuple(
        _lane(number, trip, origin) for number, trip in enumerate(ordered[:most], start=1)
    )
    place = collection.place(run.workload.name, run.workload.point)
    where = f"{run.workload.name}, {place}" if place else run.workload.name
    failed = sum(bool(lane.failure) for lane in lanes)
    return Gantt(
        key=slug("requests", run.workload.name, place, run.server),
        title=f"{where}: requests of {run.server}",
        caption=f"Requests of {run.server}{f', {place}' if place else ''}",
        description=f"A row for each of {count(len(lanes), 'request')} in the order in which they were due; "
        f"{failed} failed.",
        lanes=lanes,
        notes=_lane_notes(ordered, most) + (("A partial run.",) if run.partial else ()),
    )


def _lane(number: int, trip: Trip, origin: float) -> Lane:
    times = (trip.due - origin, trip.sent - origin, trip.first - origin, trip.ended - origin)
    return Lane(number, *times, trip.failure)


def _lane_notes(ordered: Sequence[Trip], most: int) -> tuple[str, ...]:
    if len(ordered) <= most:
        return ()
    failed = sum(trip.failure != "" for trip in ordered[most:])
    rest = f"; {count(failed, 'failure')} among the others" if failed else ""
    return (f"Cut to the first {most:,} of {len(ordered):,} requests{rest}.",)
