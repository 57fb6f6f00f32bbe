"""Charts over the time of one run: TTFT of each request, and a Gantt chart of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock_lab.bench.report.charts import Axis, Gantt, Plot, Point, Series
from penstock_lab.bench.report.request_rows import RequestRow
from penstock_lab.bench.report.runs import Collection, Run
from penstock_lab.bench.report.wording import count, slug, time_unit

MOST_DOTS = 600
"""Maximum number of dots for a server. With more requests, only the fastest and the slowest of each
group of consecutive requests are drawn.
"""
MOST_ROWS = 200
"""Maximum number of requests in a Gantt chart; only the first ones are drawn."""


def example(runs: Sequence[Run]) -> Run | None:
    """The run whose single requests are drawn: the first complete one, else the first."""
    detailed = [run for run in runs if run.requests]
    return next((run for run in detailed if not run.partial), detailed[0] if detailed else None)


def ttft_over_time(collection: Collection, workload: str, point: float | None) -> Plot | None:
    """TTFT of each request against its send time, with a series from one repeat of each server."""
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
        description="Time to first token of each successful request against the time at which it "
        "was sent.",
        x=Axis("Sent, after the start of the load", "s", log=False, zero=True),
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


def gantt(collection: Collection, run: Run) -> Gantt | None:
    """Gantt chart of a run: when each request waited in the client, waited for its first token, and
    decoded. None without data of single requests.
    """
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
    shown = tuple(ordered[:MOST_ROWS])
    place = collection.place(run.workload.name, run.workload.point)
    where = f"{run.workload.name}, {place}" if place else run.workload.name
    failed = sum(bool(request.failure) for request in shown)
    return Gantt(
        key=slug("requests", run.workload.name, place, run.server),
        title=f"{where}: requests of {run.server}",
        description=f"A row for each of {count(len(shown), 'request')} in the order in which they "
        f"were due; {failed} failed.",
        requests=shown,
        notes=_cut_notes(ordered) + (("A partial run.",) if run.partial else ()),
    )


def _cut_notes(ordered: Sequence[RequestRow]) -> tuple[str, ...]:
    if len(ordered) <= MOST_ROWS:
        return ()
    failed = sum(request.failure != "" for request in ordered[MOST_ROWS:])
    rest = f"; {count(failed, 'failure')} among the others" if failed else ""
    return (f"Cut to the first {MOST_ROWS:,} of {len(ordered):,} requests{rest}.",)
