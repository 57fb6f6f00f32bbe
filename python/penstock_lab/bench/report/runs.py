"""Runs of a report: validated results, each with a server, a workload and a point on the workload's
axis (such as a concurrency).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_lab.bench.compare.summary import (
    Spread,
    Workload,
    server_of,
    spread_of,
    value_of,
    workload_of,
)
from penstock_lab.bench.report.files import ReadResults, Result, Skipped, mapping, number, sequence
from penstock_lab.bench.report.request_rows import RequestRow, unfold
from penstock_lab.bench.report.wording import at, clean


@dataclass(frozen=True, slots=True)
class Run:
    """One measured load on one server."""

    file: str
    result: Result
    server: str
    workload: Workload
    repeat: int
    partial: bool
    requests: Sequence[RequestRow] | None
    """Its single requests; None without `--save-detailed`."""

    @property
    def own(self) -> Mapping[str, Any]:
        return mapping(self.result.get("penstock"))

    @property
    def failed(self) -> int:
        return int(self.result["failed"])

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of failed requests by kind. If the file has only a total, its kind is `failed`."""
        known: Mapping[str, int] = self.own.get("failures") or {}
        return known if known or not self.failed else {"failed": self.failed}

    def value(self, key: str) -> float | None:
        return value_of(self.result, key)


@dataclass(frozen=True, slots=True)
class Collection:
    """All runs of a directory."""

    runs: Sequence[Run]
    servers: Sequence[str]
    comparison: Mapping[str, Any]
    skipped: Sequence[Skipped]
    styles: Mapping[str, int] = field(default_factory=dict)

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(run.workload.name for run in self.runs))

    def of(self, workload: str, server: str | None = None, point: float | None = None) -> list[Run]:
        """Runs of a workload, restricted to one server and one point of the axis if given."""
        return [
            run
            for run in self.runs
            if run.workload.name == workload
            and server in (None, run.server)
            and point in (None, run.workload.point)
        ]

    def axis(self, workload: str) -> str | None:
        return next((run.workload.axis for run in self.of(workload) if run.workload.axis), None)

    def place(self, workload: str, point: float | None) -> str:
        """A point as text, such as `concurrency 8`; empty if the workload has only one point."""
        return at(self.axis(workload), point) if len(self.points(workload)) > 1 else ""

    def points(self, workload: str) -> list[float]:
        """Points of a workload's axis, ascending; empty without an axis."""
        return sorted(
            {run.workload.point for run in self.of(workload) if run.workload.point is not None}
        )


def tail_percentile(runs: Iterable[Run], latency: str) -> str | None:
    """The highest percentile of a latency above the median and up to P99 that the runs have, such
    as `p99`; None without any.
    """
    known = {
        key.split("_")[0] for run in runs for key in run.result if key.endswith(f"_{latency}_ms")
    }
    ranks = [rank for name in known if (rank := _rank(name)) is not None and 50 < rank <= 99]
    return f"p{max(ranks):g}" if ranks else None


def _rank(name: str) -> float | None:
    try:
        return float(name[1:]) if name.startswith("p") else None
    except ValueError:
        return None


def spread(runs: Iterable[Run], key: str) -> Spread | None:
    """Spread of a statistic over the complete runs, or over all runs if none is complete. None
    without values.
    """
    every = list(runs)
    complete = [run for run in every if not run.partial] or every
    values = [value for run in complete if (value := run.value(key)) is not None]
    return spread_of(values)


def collect(found: ReadResults) -> Collection:
    """Runs sorted by date. Servers are in the order of comparison.json; those that it does not list
    follow in order of appearance.
    """
    results = _adopted(found.results)
    runs = [_run(name, result) for name, result in results]
    order = [
        clean(name) for name in sequence(found.comparison.get("order")) if isinstance(name, str)
    ]
    present = dict.fromkeys(run.server for run in runs)
    servers = [*(name for name in dict.fromkeys(order) if name in present)]
    servers += [name for name in present if name not in servers]
    styles = {name: index for index, name in enumerate(servers)}
    return Collection(runs, servers, found.comparison, found.skipped, styles)


def _run(name: str, result: Result) -> Run:
    own = mapping(result.get("penstock"))
    return Run(
        file=name,
        result={key: value for key, value in result.items() if not isinstance(value, list)},
        server=clean(server_of(result)),
        workload=workload_of(result),
        repeat=int(own.get("repeat") or 0),
        partial=bool(own.get("partial")),
        requests=unfold(result),
    )


def _adopted(results: Sequence[tuple[str, Result]]) -> list[tuple[str, Result]]:
    """Add server, workload and axis to results of `vllm bench serve`, derived from their keys.

    The axis is the concurrency if it differs between files, else the request rate if that differs.
    """
    foreign = [result for _, result in results if "penstock" not in result]
    axes = {"concurrency": "max_concurrency", "rate": "request_rate"}
    axis = next(
        (
            axis
            for axis, key in axes.items()
            if len({_load(one, key) for one in foreign} - {None}) > 1
        ),
        None,
    )
    seen: Counter[object] = Counter()
    adopted = []
    for name, result in results:
        if "penstock" not in result:
            point = _load(result, axes[axis]) if axis else None
            own = {
                "server": clean(
                    str(result.get("label") or result.get("backend") or result.get("endpoint_type"))
                ),
                "workload": _workload(result),
                "axis": axis if point is not None else None,
                "point": point,
            }
            key = tuple(own.values())
            result = {**result, "penstock": {**own, "repeat": seen[key]}}
            seen[key] += 1
        adopted.append((name, result))
    return adopted


def _load(result: Result, key: str) -> float | None:
    value = result.get(key)
    try:
        return number(float(value)) if isinstance(value, str) else number(value)
    except ValueError:
        return None


def _workload(result: Result) -> str:
    """Workload name for a file without one: its model and number of requests."""
    model, prompts = result.get("model_id") or "load", number(result.get("num_prompts"))
    short = clean(str(model)).rstrip("/").rsplit("/", 1)[-1]
    return f"{short}, {prompts:,.0f} requests" if prompts else short
