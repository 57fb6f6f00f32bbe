"""`penstock bench sweep`: measures workloads at several loads, and finds the knee of each."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench import flags, runs, sweep_plan
from penstock_lab.bench.knee import FEWEST_LOADS, Knee, find_knee
from penstock_lab.bench.result import Result
from penstock_lab.bench.runs import INTERRUPTED, Keeper, Measure, is_partial
from penstock_lab.bench.slo import Slo
from penstock_lab.bench.sweep_plan import Lengths, Plan, Point
from penstock_lab.bench.table import figure, render

LOADS = {"concurrency": "concurrency", "rate": "offered req/s"}
COLUMNS = {
    "request_throughput": "req/s",
    "output_throughput": "out tok/s",
    "median_ttft_ms": "TTFT p50 ms",
    "p99_ttft_ms": "TTFT p99 ms",
    "mean_tpot_ms": "TPOT avg ms",
    "p99_itl_ms": "ITL p99 ms",
    "p99_e2el_ms": "E2E p99 ms",
}
"""Statistics in the table, with their headings. GenAI-Perf's inter-token latency is TPOT here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sweep_plan.add_arguments(parser)
    runs.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Run the sweep and print a table after each workload. Exit status: 0; 1 if a workload failed;
    130 after Ctrl-C.
    """
    plan = sweep_plan.plan(parsed)
    runs.add_fields(parsed, sweep_plan.extra_inputs("--extra-inputs", parsed.extra_inputs))
    keeper = runs.Keeper(parsed.result_dir)
    keeper.prepare()
    measure = runs.measure_at(flags.target(parsed), parsed, "sweep")
    troubled = False
    for curve in sweep(plan, measure, keeper):
        print("\n".join(lines(curve)), flush=True)
        troubled |= bool(curve.trouble) or not any(map(Measured.answered, curve.points))
    keeper.announce()
    if keeper.interrupted:
        return INTERRUPTED
    return 1 if troubled else 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One point (load) of a workload, with a result for each completed round."""

    point: Point
    slos: Sequence[Slo]
    results: list[Result] = field(default_factory=list)

    def answered(self) -> bool:
        """Whether any request succeeded."""
        return any(result["completed"] for result in self.results)

    def passed(self) -> str:
        """Reason to stop the workload here, such as a missed SLO; empty to continue."""
        if not self.answered():
            return "no request succeeded"
        return "; ".join(filter(None, (slo.passed(self.results) for slo in self.slos)))

    def value(self, key: str) -> float:
        """Median of a statistic over the rounds."""
        return float(statistics.median(result[key] for result in self.results))


@dataclass(slots=True)
class Curve:
    """The measured points of one workload."""

    workload: Lengths
    points: list[Measured] = field(default_factory=list)
    trouble: str = ""
    """Why the measurement failed or ended early."""

    def knee(self) -> Knee | None:
        """Knee of the output throughput over the load. Points with a partial result are ignored."""
        whole = [point for point in self.points if not any(map(is_partial, point.results))]
        return find_knee((point.point.load, point.value("output_throughput")) for point in whole)


def sweep(plan: Plan, measure: Measure, keeper: Keeper) -> Iterator[Curve]:
    """Measure all workloads: one point after the other, and all rounds of a point in sequence.
    Yields each workload's curve when it is complete. Ends early after Ctrl-C.

    An error in one workload, such as prompts too long for the server, does not stop the others.
    """
    for number, workload in enumerate(plan.workloads):
        curve = Curve(workload)
        try:
            for index, point in enumerate(plan.points):
                measured = Measured(point, plan.slos)
                for result in keeper.take(_rounds(plan, measure, number, index)):
                    measured.results.append(result)
                    curve.points[index:] = [measured]
                if keeper.interrupted or measured.passed():
                    break
        except InvalidValueError:
            raise
        except PenstockError as error:
            curve.trouble = str(error)
        yield curve
        if keeper.interrupted:
            return


def _rounds(plan: Plan, measure: Measure, number: int, index: int) -> Iterator[Result]:
    """The rounds of one point of one workload. After Ctrl-C, the last result is partial."""
    workload, point = plan.workloads[number], plan.points[index]
    words = [*workload.words(), *point.words(), "--metric-percentiles", plan.percentiles()]
    for repeat in range(plan.rounds):
        warmups = plan.warmups if index == repeat == 0 else 0
        tags = {
            "workload": workload.name,
            "axis": point.axis,
            "point": point.load,
            "repeat": repeat,
        }
        seed = plan.seed_of(number, index, repeat)
        result = measure([*words, "--num-warmups", str(warmups)], seed=seed, tags=tags)
        yield result
        if is_partial(result):
            return


def lines(curve: Curve) -> list[str]:
    """The table of a workload, and its knee. Statistics are medians over the rounds; failures are
    summed.
    """
    knee = curve.knee()
    axis = curve.points[0].point.axis if curve.points else "concurrency"
    rows = [_row(point, knee) for point in curve.points]
    title = f"{curve.workload.name} (input/output tokens)"
    table = render([LOADS[axis], *COLUMNS.values(), "failed", ""], rows) if rows else []
    trouble = [f"trouble: {curve.trouble}"] if curve.trouble else []
    return [title, *table, *trouble, _verdict(curve, knee), ""]


def _row(point: Measured, knee: Knee | None) -> list[str]:
    load = point.point.load
    notes = [
        "knee" if knee is not None and knee.load == load else "",
        f"beyond: {passed}" if (passed := point.passed()) else "",
        "partial" if any(map(is_partial, point.results)) else "",
    ]
    failed = sum(result["failed"] for result in point.results)
    values = [figure(point.value(key)) for key in COLUMNS]
    return [f"{load:g}", *values, str(failed), ", ".join(filter(None, notes))]


def _verdict(curve: Curve, knee: Knee | None) -> str:
    if knee is None:
        loads = len(curve.points)
        reason = (
            "throughput does not level off"
            if loads >= FEWEST_LOADS
            else f"{loads} loads are too few"
        )
        return f"knee: none, {reason}"
    highest = max(point.value("output_throughput") for point in curve.points)
    share = f"{100 * knee.throughput / highest:.0f}% of the highest"
    return f"knee: {knee.load:g}, {figure(knee.throughput)} output tok/s ({share})"
