"""The headline of each workload: the best server, its ratio to another one, and the spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_lab.bench.compare.summary import Spread
from penstock_lab.bench.report.curves import knee
from penstock_lab.bench.report.document import Headline
from penstock_lab.bench.report.runs import Collection, Run, spread
from penstock_lab.bench.report.tables import round_change, same
from penstock_lab.bench.report.wording import AXES, count, human, listing, plain, times, times_range


@dataclass(frozen=True, slots=True)
class Measure:
    """A statistic that can decide a comparison."""

    key: str
    phrase: str
    unit: str
    higher: bool


THROUGHPUT = Measure("output_throughput", "output throughput", "tok/s", True)
DELAY = Measure("median_ttft_ms", "median TTFT", "ms", False)
LATENCY = Measure("median_e2el_ms", "median end-to-end latency", "ms", False)


@dataclass(frozen=True, slots=True)
class Standing:
    """A server, the runs by which it is compared, and the spread of their statistic."""

    server: str
    runs: Sequence[Run]
    value: Spread


@dataclass(frozen=True, slots=True)
class Decision:
    best: Standing
    other: Standing
    level: tuple[str, ...]
    """Servers that are indistinguishable from the best one."""


def headline(collection: Collection, workload: str, baseline: str) -> Headline:
    """Headline of a workload."""
    runs = collection.of(workload)
    axis = collection.axis(workload)
    partial = any(run.partial for run in runs)
    if axis == "round":
        figure, caption, text = _rounds(collection, workload)
    elif len({run.server for run in runs}) > 1:
        figure, caption, text = _contest(collection, workload, baseline)
    else:
        figure, caption, text = _alone(collection, workload, runs[0].server)
    return Headline(workload, figure, caption, text + _failed(runs), partial)


def _failed(runs: Sequence[Run]) -> str:
    by_server: dict[str, int] = {}
    for run in runs:
        by_server[run.server] = by_server.get(run.server, 0) + run.failed
    failing = [f"{number:,} of {name}" for name, number in by_server.items() if number]
    return f" Failed requests: {', '.join(failing)}." if failing else ""


def _rounds(collection: Collection, workload: str) -> tuple[str, str, str]:
    found = []
    for server in collection.servers:
        change = round_change(collection, workload, server, "mean_ttft_ms")
        if change and change[0]:
            found.append((change[1] / change[0], server, *change))
    if not found:
        return "", "", "One round only: there is nothing to compare it with."
    ratio, server, first, later = min(found)
    text = (
        f"With {server}, repeating the same prompts takes mean TTFT from {human(first)} to "
        f"{human(later)} ms."
    )
    if len(found) > 1:
        worst = max(found)
        text += f" The others: up to {times(worst[0])} ({worst[1]})."
    return times(ratio), "mean TTFT, later rounds to the first", text


def _alone(collection: Collection, workload: str, server: str) -> tuple[str, str, str]:
    best = _peak(collection, workload, server)
    if best is None:
        return "", "", f"{server} has no output throughput."
    point = best.runs[0].workload.point
    where = collection.place(workload, point)
    text = f"{server} makes {human(best.value.median)} output tok/s{_spread(best.value)}"
    text += f" at its best, {where}" if where else ""
    text += f", with {_latencies(best.runs)}."
    bend = knee(collection, workload, server)
    if bend is not None and bend != point:
        runs = collection.of(workload, server, bend)
        value = spread(runs, THROUGHPUT.key)
        made = human(value.median if value else None)
        text += f" The knee is at {plain(bend)}: {made} tok/s, {_latencies(runs)}."
    elif bend is not None:
        text += " The knee of the curve is there too."
    return human(best.value.median), "output tok/s", text


def _spread(value: Spread) -> str:
    return f" ({human(value.low)}–{human(value.high)} in {value.n} runs)" if value.range else ""


def _latencies(runs: Sequence[Run]) -> str:
    words = []
    for key, name in (("median_ttft_ms", "median TTFT"), ("median_tpot_ms", "median TPOT")):
        value = spread(runs, key)
        words += [f"{name} {human(value.median)} ms"] if value else []
    return " and ".join(words) or "no latency in its files"


def _peak(collection: Collection, workload: str, server: str) -> Standing | None:
    """A server's runs at the load with the highest output throughput; None without throughput."""
    points: Sequence[float | None] = collection.points(workload) or [None]
    candidates = [_standing(collection, workload, server, point, THROUGHPUT) for point in points]
    known = [one for one in candidates if one is not None]
    return max(known, key=lambda one: one.value.median, default=None)


def _standing(
    collection: Collection, workload: str, server: str, point: float | None, measure: Measure
) -> Standing | None:
    runs = collection.of(workload, server, point)
    value = spread(runs, measure.key)
    return Standing(server, runs, value) if value else None


def _contest(collection: Collection, workload: str, baseline: str) -> tuple[str, str, str]:
    """(figure, caption, text) that compare the servers. The highest throughput wins, or the lowest
    latency if the throughputs are indistinguishable.
    """
    axis = collection.axis(workload)
    points = collection.points(workload)
    heaviest = _heaviest(collection, workload)
    open_loop = axis == "time_scale"
    if not open_loop:
        known = [_peak(collection, workload, server) for server in collection.servers]
        standings = [one for one in known if one is not None]
        decided = _decide(standings, THROUGHPUT, baseline)
        if decided:
            return _won(collection, workload, decided, THROUGHPUT, len(points) > 1)
    for measure in (LATENCY, DELAY):
        known = [
            _standing(collection, workload, server, heaviest, measure)
            for server in collection.servers
        ]
        decided = _decide([one for one in known if one is not None], measure, baseline)
        if decided:
            figure, caption, text = _won(collection, workload, decided, measure, len(points) > 1)
            lead = "" if open_loop else "Output throughput does not tell the servers apart. "
            return figure, caption, lead + text
    return (
        "≈",
        "no difference",
        "The runs of the best servers overlap in output throughput and in latency.",
    )


def _heaviest(collection: Collection, workload: str) -> float | None:
    axis, points = collection.axis(workload), collection.points(workload)
    if axis is None or not points:
        return None
    return points[-1] if AXES[axis].lighter > 0 else points[0]


def _decide(standings: Sequence[Standing], measure: Measure, baseline: str) -> Decision | None:
    """The winner, and the server that it is compared with: the baseline if it lost, else the second
    best distinguishable server.

    None if the winner is indistinguishable from the baseline, or from all other servers.
    """
    ranked = sorted(standings, key=lambda one: one.value.median, reverse=measure.higher)
    level = [one for one in ranked[1:] if same(ranked[0].value, one.value)]
    beaten = [one for one in ranked[1:] if one not in level and one.value.median]
    if not beaten or not ranked[0].value.median or any(one.server == baseline for one in level):
        return None
    other = next((one for one in beaten if one.server == baseline), beaten[0])
    return Decision(ranked[0], other, tuple(one.server for one in level))


def _won(
    collection: Collection, workload: str, decided: Decision, measure: Measure, varied: bool
) -> tuple[str, str, str]:
    best, other = decided.best, decided.other
    ratio = best.value.median / other.value.median if other.value.median else None
    where = collection.place(workload, best.runs[0].workload.point)
    most = "the highest" if measure.higher else "the lowest"
    text = f"{best.server} has {most} {measure.phrase}{f', at {where}' if where else ''}: "
    text += f"{human(best.value.median)} {measure.unit}, {times(ratio)} that of {other.server}"
    text += ", each at its best" if varied and measure is THROUGHPUT else ""
    spreads = _ratio_spread(best, other, measure)
    text += f" ({spreads})." if spreads else "."
    if decided.level:
        text += f" Even with it: {listing(decided.level)}."
    if measure is THROUGHPUT:
        text += _beside(best, other)
    return times(ratio), f"{measure.phrase}, {best.server} to {other.server}", text


def _ratio_spread(best: Standing, other: Standing, measure: Measure) -> str:
    """Text with the range of the ratio over the repeats that both servers have."""
    theirs = {run.repeat: run.value(measure.key) for run in other.runs}
    pairs = [
        (run.value(measure.key), theirs.get(run.repeat)) for run in best.runs if not run.partial
    ]
    ratios = [mine / its for mine, its in pairs if mine is not None and its]
    if len(ratios) < 2:
        return ""
    return f"{times_range(min(ratios), max(ratios))} over {count(len(ratios), 'repeat')}"


def _beside(best: Standing, other: Standing) -> str:
    """A sentence about the winner's median TTFT at that load, compared with the other server's."""
    mine, its = spread(best.runs, DELAY.key), spread(other.runs, DELAY.key)
    if mine is None or its is None or not its.median:
        return ""
    return f" Its median TTFT there is {human(mine.median)} ms, {times(mine.median / its.median)}."
