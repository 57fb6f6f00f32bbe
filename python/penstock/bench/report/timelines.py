"""Charts over the time of one run: TTFT request by request, and the requests below each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.bench.report.charts import Axis, Extent, Gantt, Lane, Plot, Point, Series
from penstock.bench.report.naming import slug, time_unit
from penstock.bench.report.numbers import count
from penstock.bench.report.request_rows import RequestRow
from penstock.bench.report.runs import Collection, Run

MOST_DOTS = 1200
"""Most dots in a chart; more are reduced to the fastest and slowest of neighbours."""
MOST_LANES = 200
LEAST_LANES = 40
LANES_ON_A_PAGE = 5000


def example(runs: Sequence[Run]) -> Run | None:
    """The run whose requests are drawn one by one: the first that is complete and has them."""
    detailed = [run for run in runs if run.requests]
    return next((run for run in detailed if not run.partial), detailed[0] if detailed else None)


def ttft_over_time(collection: Collection, workload: str, point: float | None) -> Plot | None:
    """Time to first token against the time of sending, a series for each server, the first repeat
    of each.
    """
    examples = [example(collection.of(workload, server, point)) for server in collection.servers]
    chosen = [run for run in examples if run is not None]
    answered = [
        (run, [request for request in run.requests or () if _answered(request)]) for run in chosen
    ]
    answered = [(run, requests) for run, requests in answered if requests]
    if not answered:
        return None
    factor, unit = time_unit(
        max(request.ttft for _, requests in answered for request in requests) * 1000
    )
    most = max(MOST_DOTS // len(answered), 50)
    series = [
        Series(
            run.server,
            collection.styles[run.server],
            _dots(requests, 1000 * factor, most),
            line=False,
        )
        for run, requests in answered
    ]
    place = collection.place(workload, point)
    where = f"{workload}, {place}" if place else workload
    return Plot(
        key=slug("ttft-over-time", workload, place),
        title=f"{where}: TTFT over time",
        caption=f"TTFT over time{f', {place}' if place else ''}",
        description="Time to first token of each successful request against the time at which it "
        "was sent.",
        x=Axis("Sent, after the start of the load", "s", Extent.LINEAR, zero=True),
        y=Axis("TTFT", unit),
        series=tuple(series),
        notes=_dot_notes(answered, most),
    )


def _answered(request: RequestRow) -> bool:
    return not request.failure and math.isfinite(request.sent) and math.isfinite(request.ttft)


def _dots(requests: Sequence[RequestRow], factor: float, most: int) -> tuple[Point, ...]:
    ordered = sorted(requests, key=lambda request: request.sent)
    if len(ordered) > most:
        size = math.ceil(2 * len(ordered) / most)
        buckets = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        ordered = [end for bucket in buckets for end in _extremes(bucket)]
    return tuple(Point(request.sent, request.ttft * factor) for request in ordered)


def _extremes(bucket: Sequence[RequestRow]) -> list[RequestRow]:
    ends = [
        min(bucket, key=lambda request: request.ttft),
        max(bucket, key=lambda request: request.ttft),
    ]
    return sorted(ends, key=lambda request: request.sent) if len(bucket) > 1 else ends[:1]


def _dot_notes(answered: Sequence[tuple[Run, list[RequestRow]]], most: int) -> tuple[str, ...]:
    notes = ["Successful requests of one repeat."]
    longest = max(len(requests) for _, requests in answered)
    if longest > most:
        notes.append(
            f"The fastest and the slowest of every {math.ceil(2 * longest / most)} requests."
        )
    if any(run.partial for run, _ in answered):
        notes.append("Partial runs among them.")
    failed = sum(request.failure != "" for run, _ in answered for request in run.requests or ())
    if failed:
        notes.append(f"{count(failed, 'failed request')} left out.")
    return tuple(notes)


def lanes_each(charts: int) -> int:
    """Rows for each of so many Gantt charts, so that a page of many stays small."""
    return max(LEAST_LANES, min(MOST_LANES, LANES_ON_A_PAGE // max(charts, 1)))


def gantt(collection: Collection, run: Run, most: int) -> Gantt | None:
    """Gantt chart of a run: client queue, TTFT, decode. None without single requests."""
    known = [request for request in run.requests or () if math.isfinite(request.due)]
    if not known:
        return None
    ordered = sorted(
        known,
        key=lambda request: (
            request.due,
            request.sent if math.isfinite(request.sent) else math.inf,
        ),
    )
    origin = min(0.0, ordered[0].due)
    lanes = tuple(
        _lane(number, request, origin) for number, request in enumerate(ordered[:most], start=1)
    )
    place = collection.place(run.workload.name, run.workload.point)
    where = f"{run.workload.name}, {place}" if place else run.workload.name
    failed = sum(bool(lane.failure) for lane in lanes)
    return Gantt(
        key=slug("requests", run.workload.name, place, run.server),
        title=f"{where}: requests of {run.server}",
        caption=f"Requests of {run.server}{f', {place}' if place else ''}",
        description=f"A row for each of {count(len(lanes), 'request')} in the order in which they "
        f"were due; {failed} failed.",
        lanes=lanes,
        notes=_lane_notes(ordered, most) + (("A partial run.",) if run.partial else ()),
    )


def _lane(number: int, request: RequestRow, origin: float) -> Lane:
    times = (
        request.due - origin,
        request.sent - origin,
        request.first - origin,
        request.ended - origin,
    )
    return Lane(number, *times, request.failure)


def _lane_notes(ordered: Sequence[RequestRow], most: int) -> tuple[str, ...]:
    if len(ordered) <= most:
        return ()
    failed = sum(request.failure != "" for request in ordered[most:])
    rest = f"; {count(failed, 'failure')} among the others" if failed else ""
    return (f"Cut to the first {most:,} of {len(ordered):,} requests{rest}.",)
