"""Tables of measurements: medians with ratios to a baseline, percentiles, rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median

from penstock_lab.bench.compare.summary import Spread, Statistic, Summary, Workload
from penstock_lab.bench.report.document import Cell, Column, Mark, Table
from penstock_lab.bench.report.request_rows import LATENCIES, Latency, pooled
from penstock_lab.bench.report.runs import Collection, Run, tail_percentile
from penstock_lab.bench.report.wording import AXES, NOTHING, at, human, human_range, plain, times
from penstock_lab.bench.stats import percentile

SAME = 0.02
"""Medians that differ by at most this share count as equal, even if the ranges do not overlap."""
_PERCENTS = (50, 90, 99)


def ratios(collection: Collection, summary: Summary, workload: str) -> Table | None:
    """Table with the medians over repeats, their range, and their ratio to the baseline."""
    places = sorted(
        (one for one in summary.workloads if one.name == workload), key=lambda one: one.point or 0
    )
    statistics = _statistics(collection, summary, workload)
    found = {
        (place.point, server): row
        for place in places
        for server in summary.servers
        if (row := _ratio_row(summary, place, server, statistics))
    }
    if not found or not statistics:
        return None
    compared = len(summary.servers) > 1 and any(server == summary.baseline for _, server in found)
    title = f"Against {summary.baseline}" if compared else "Results"
    columns = tuple(map(_column, statistics))
    return _by_place(
        collection, workload, found, Table(title, columns, (), notes=_ratio_notes(summary))
    )


def _by_place(
    collection: Collection,
    workload: str,
    found: Mapping[tuple[float | None, str], tuple[Cell, tuple[Cell, ...]]],
    table: Table,
) -> Table:
    """A table with a row for each server and point. `table` provides the columns after the first.

    Rows are named by server and grouped by point. With a single server, rows are named by point.
    """
    axis = collection.axis(workload)
    points = list(dict.fromkeys(point for point, _ in found))
    if axis is not None and len(points) > 1 and len({server for _, server in found}) == 1:
        rows = [
            (replace(name, text=NOTHING if point is None else plain(point)), *cells)
            for (point, _), (name, cells) in found.items()
        ]
        columns = (Column(AXES[axis].title, numeric=False), *table.columns)
        return replace(table, columns=columns, rows=tuple(rows))
    places = [point for point, _ in found]
    groups = [
        (places.index(point), at(axis, point).capitalize()) for point in points if len(points) > 1
    ]
    rows = [(name, *cells) for name, cells in found.values()]
    columns = (Column("Server", numeric=False), *table.columns)
    return replace(table, columns=columns, rows=tuple(rows), groups=tuple(groups))


def _statistics(collection: Collection, summary: Summary, workload: str) -> list[Statistic]:
    """The statistics for the columns, as far as the runs have them: throughputs, memory, and median
    and highest percentile of each latency.
    """
    runs = collection.of(workload)
    wanted = {"output_throughput", "request_throughput", "request_goodput", "pss_mb"}
    for latency in LATENCIES:
        wanted |= {
            f"{kind}_{latency.key}_ms" for kind in ("median", tail_percentile(runs, latency.key))
        }
    return [
        one
        for one in summary.statistics
        if one.key in wanted and any(run.value(one.key) is not None for run in runs)
    ]


def _column(statistic: Statistic) -> Column:
    """The column of a statistic: the last word of its label is the unit (`TTFT median ms`)."""
    name, _, unit = statistic.label.rpartition(" ")
    return (
        Column(name[:1].upper() + name[1:], unit) if name else Column(statistic.label.capitalize())
    )


def _ratio_row(
    summary: Summary, place: Workload, server: str, statistics: Sequence[Statistic]
) -> tuple[Cell, tuple[Cell, ...]] | None:
    counts = summary.counts.get((place, server))
    if counts is None:
        return None
    troubles = []
    if counts.failed:
        troubles.append(f"{counts.failed:,} of {counts.failed + counts.completed:,} failed")
    if counts.partial:
        troubles.append(f"{counts.partial} of {counts.runs} partial")
    name = Cell(server, detail=", ".join(troubles), mark=Mark.WARNING if troubles else None)
    return name, tuple(_ratio_cell(summary, place, server, one) for one in statistics)


def _ratio_cell(summary: Summary, place: Workload, server: str, statistic: Statistic) -> Cell:
    cell = summary.cells.get((place, server, statistic.key))
    if cell is None:
        return Cell(NOTHING)
    spread = human_range(cell.low, cell.high)
    spread = spread if spread != human(cell.median) else ""
    reference = summary.cells.get((place, summary.baseline, statistic.key))
    if server == summary.baseline or reference is None or cell.ratio is None:
        return Cell(human(cell.median), detail=spread)
    higher = cell.median > reference.median
    better = higher == statistic.higher_is_better
    mark = Mark.EVEN if same(cell, reference) else Mark.BETTER if better else Mark.WORSE
    return Cell(human(cell.median), times(cell.ratio), spread, mark)


def same(one: Spread, other: Spread) -> bool:
    """Whether two servers are indistinguishable: the ranges of a statistic over their repeats
    overlap, or its medians differ by at most SAME.
    """
    overlap = one.low <= other.high and other.low <= one.high
    return overlap or abs(one.median - other.median) <= SAME * abs(other.median)


def _ratio_notes(summary: Summary) -> tuple[str, ...]:
    repeats = max((cell.n for cell in summary.cells.values()), default=1)
    notes = []
    if repeats > 1:
        notes.append(f"Medians of up to {repeats} runs, below them the smallest and largest run.")
    if len(summary.servers) > 1:
        overlap = "the runs overlap or " if repeats > 1 else ""
        even = f"≈ even ({overlap}the difference is at most {SAME:.0%})"
        notes.append(f"× is the ratio to {summary.baseline}: ▲ better, ▼ worse, {even}.")
    return tuple(notes)


def percentiles(collection: Collection, workload: str) -> Table | None:
    """P50, P90 and P99 of the four latencies: medians over the repeats."""
    points: Sequence[float | None] = collection.points(workload) or [None]
    found = {}
    for point in points:
        for server in collection.servers:
            runs = collection.of(workload, server, point)
            cells = [_percentile_cell(runs, latency) for latency in LATENCIES]
            if any(cells):
                found[point, server] = Cell(server), tuple(cell or Cell(NOTHING) for cell in cells)
    if not found:
        return None
    columns = tuple(Column(one.name, "ms") for one in LATENCIES)
    return _by_place(collection, workload, found, Table("Latencies: P50 / P90 / P99", columns, ()))


def _percentile_cell(runs: Sequence[Run], latency: Latency) -> Cell | None:
    complete = [run for run in runs if not run.partial] or runs
    ordered = {id(run): pooled(run.requests or (), latency) for run in complete}
    found = []
    for percent in _PERCENTS:
        values = [_percentile(run, latency, percent, ordered[id(run)]) for run in complete]
        known = [value for value in values if value is not None]
        if not known:
            return None
        found.append(human(median(known)))
    return Cell(" / ".join(found))


def _percentile(run: Run, latency: Latency, percent: int, ordered: Sequence[float]) -> float | None:
    """The percentile in the result file, else computed from the ascending values `ordered`."""
    names = [f"p{percent}", "median"] if percent == 50 else [f"p{percent}"]
    for name in names:
        value = run.value(f"{name}_{latency.key}_ms")
        if value is not None:
            return value
    return percentile(ordered, percent) if ordered else None


def rounds(collection: Collection, workload: str) -> Table | None:
    """The first round beside the mean of later ones, for a workload whose axis is the round."""
    points = collection.points(workload)
    if collection.axis(workload) != "round" or len(points) < 2:
        return None
    keys = (
        ("mean_ttft_ms", "TTFT mean", "ms"),
        ("median_ttft_ms", "TTFT median", "ms"),
        ("total_token_throughput", "Total throughput", "tok/s"),
        ("request_throughput", "Requests", "req/s"),
    )
    rows = [
        (Cell(server), *(_round_cell(collection, workload, server, key) for key, _, _ in keys))
        for server in collection.servers
    ]
    columns = (Column("Server", numeric=False), *(Column(title, unit) for _, title, unit in keys))
    later = f"2..{plain(points[-1])}" if len(points) > 2 else "2"
    return Table(f"Round 1 → mean of rounds {later}", columns, tuple(rows))


def _round_cell(collection: Collection, workload: str, server: str, key: str) -> Cell:
    change = round_change(collection, workload, server, key)
    if change is None:
        return Cell(NOTHING)
    first, later = change
    ratio = times(later / first) if first else ""
    better = (later > first) == key.endswith("throughput")
    mark = None if later == first else Mark.BETTER if better else Mark.WORSE
    return Cell(f"{human(first)} → {human(later)}", ratio, mark=mark)


def round_change(
    collection: Collection, workload: str, server: str, key: str
) -> tuple[float, float] | None:
    """A statistic in the first round, and its mean over the later rounds. The value of a round is
    the median over its repeats. None if there are no later rounds.
    """
    values = []
    for point in collection.points(workload):
        runs = [run for run in collection.of(workload, server, point) if not run.partial]
        known = [value for run in runs if (value := run.value(key)) is not None]
        values.append(median(known) if known else None)
    later = [value for value in values[1:] if value is not None]
    return (values[0], mean(later)) if values and values[0] is not None and later else None
