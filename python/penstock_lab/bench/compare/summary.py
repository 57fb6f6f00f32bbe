"""Summarises the result files of a comparison: medians over repeats, spreads, ratios to a baseline.

It depends only on the keys of result files, so files of any tool with these keys work.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from penstock.core import PenstockError

COMPARISON_FILE = "comparison.json"
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
_LATENCY = re.compile(r"(median|p[0-9.]+)_(ttft|tpot|itl|e2el)_ms")

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number in the result of a run: its key, its label, and whether higher is better."""

    key: str
    label: str
    higher_is_better: bool = False
    compared: bool = True
    """Whether a ratio to the baseline server's value is meaningful."""


THROUGHPUTS = (
    Statistic("output_throughput", "output tok/s", higher_is_better=True),
    Statistic("input_throughput", "input tok/s", higher_is_better=True),
    Statistic("request_throughput", "requests/s", higher_is_better=True),
)
PROCESS = (
    Statistic("pss_mb", "PSS MiB"),
    Statistic("server_cpu_s", "server CPU s"),
    Statistic("foreign_share", "foreign CPU share", compared=False),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload and, if its load varies (for example the concurrency), one value of this axis."""

    name: str
    axis: str | None = None
    point: float | None = None

    @property
    def label(self) -> str:
        return self.name if self.point is None else f"{self.name} {self.axis} {self.point:g}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of a statistic over the `n` repeats that have it."""

    median: float
    low: float
    high: float
    n: int
    ratio: float | None = None
    """Median divided by the baseline's median; None without a baseline, or if that is zero."""

    @property
    def range(self) -> tuple[float, float] | None:
        return (self.low, self.high) if self.n > 1 and self.high > self.low else None


def spread_of(values: Sequence[float], reference: float = 0.0) -> Spread | None:
    """Spread of values, with the ratio of their median to `reference` unless that is zero. None
    without values.
    """
    if not values:
        return None
    middle = median(values)
    ratio = middle / reference if reference else None
    return Spread(middle, min(values), max(values), len(values), ratio)


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of runs and failures of one server with one workload, including partial runs."""

    runs: int
    partial: int
    completed: int
    failed: int
    failures: Mapping[str, int]
    """Number of failed requests by kind. `short` means fewer output tokens than requested."""
    resent: int
    """Number of requests sent again because a keep-alive connection had closed; not failures."""
    prompt_mismatch: int
    """Number of answers in which the server counted other prompt tokens than requested."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A comparison as a table: a cell for each workload, statistic and server."""

    baseline: str
    servers: Sequence[str]
    workloads: Sequence[Workload]
    statistics: Sequence[Statistic]
    cells: Mapping[tuple[Workload, str, str], Spread]
    """Spread by (workload, server, key of the statistic)."""
    counts: Mapping[tuple[Workload, str], Counts]

    def row(self, workload: Workload, key: str) -> list[Spread | None]:
        """One statistic of one workload on each server, in the order of `servers`."""
        return [self.cells.get((workload, server, key)) for server in self.servers]


def summarise(
    results: Iterable[Result], baseline: str | None = None, order: Sequence[str] = ()
) -> Summary:
    """Summarise runs by server and workload. Partial runs are counted, but excluded from
    statistics.

    `baseline` is the server that ratios refer to, by default the first one. `order` lists servers
    to put first.

    Raises:
        PenstockError: `baseline` is not among the servers.
    """
    grouped: dict[tuple[Workload, str], list[Result]] = {}
    for result in results:
        grouped.setdefault((workload_of(result), server_of(result)), []).append(result)
    present = {server: None for _, server in grouped}
    servers = [name for name in dict.fromkeys([*order, *present]) if name in present]
    if baseline is not None and baseline not in servers:
        raise PenstockError(
            f"baseline {baseline!r} has no results; servers: {', '.join(servers) or 'none'}"
        )
    reference = baseline or (servers[0] if servers else "")
    complete = {
        key: [run for run in runs if not _own(run).get("partial")] for key, runs in grouped.items()
    }
    statistics = _statistics([run for runs in complete.values() for run in runs])
    workloads = list(dict.fromkeys(workload for workload, _ in grouped))
    cells: dict[tuple[Workload, str, str], Spread] = {}
    for workload in workloads:
        runs = {server: complete.get((workload, server), ()) for server in servers}
        for one in statistics:
            for server, cell in _cells(runs, one, reference).items():
                cells[workload, server, one.key] = cell
    counts = {key: _count(runs) for key, runs in grouped.items()}
    return Summary(reference, servers, workloads, statistics, cells, counts)


def server_of(result: Mapping[str, Any]) -> str:
    """Name of the server, or of the model for files without one, such as those of `vllm bench
    serve`.
    """
    own = _own(result)
    return str(own.get("server") or result.get("label") or result.get("model_id") or "server")


def workload_of(result: Mapping[str, Any]) -> Workload:
    """The workload of a run."""
    own = _own(result)
    point = _number(own.get("point"))
    axis = own.get("axis")
    name = str(own.get("workload") or own.get("command") or "load")
    return Workload(name) if point is None or not axis else Workload(name, str(axis), point)


def value_of(result: Mapping[str, Any], key: str) -> float | None:
    """A statistic of one run; None if missing or not finite."""
    if key == "input_throughput" and key not in result:
        tokens, duration = (
            _number(result.get("total_input_tokens")),
            _number(result.get("duration")),
        )
        return tokens / duration if tokens is not None and duration else None
    found = _number(result.get(key))
    if found == 0 and _LATENCY.fullmatch(key):
        return None  # vLLM writes 0 for a missing latency.
    return found if found is not None else _number((_own(result).get("process") or {}).get(key))


def _own(result: Mapping[str, Any]) -> Mapping[str, Any]:
    found = result.get("penstock")
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _statistics(results: Sequence[Result]) -> list[Statistic]:
    """The statistics that some run has: throughputs, percentiles of latencies, process statistics.
    The median appears once, even if a run also has P50.
    """
    keys = list(dict.fromkeys(key for result in results for key in result))
    latencies = [
        Statistic(key, f"{LATENCIES[name]} {label} ms")
        for name in LATENCIES
        for key, label in _percentiles(keys, name)
    ]
    known = [*THROUGHPUTS, *latencies, *PROCESS]
    return [
        one for one in known if any(value_of(result, one.key) is not None for result in results)
    ]


def _percentiles(keys: Iterable[str], latency: str) -> list[tuple[str, str]]:
    """(key, label) for each percentile of one latency, ascending. The median counts as P50."""
    found = []
    for key in keys:
        match = _LATENCY.fullmatch(key)
        if match and match[2] == latency and match[1] != "p50":
            rank = 50.0 if match[1] == "median" else float(match[1][1:])
            found.append((rank, key, "median" if match[1] == "median" else match[1].upper()))
    return [(key, label) for _, key, label in sorted(found)]


def _cells(
    runs: Mapping[str, Iterable[Result]], statistic: Statistic, baseline: str
) -> dict[str, Spread]:
    """Spread of the statistic on each server that has it."""
    values = {
        server: [value for run in own if (value := value_of(run, statistic.key)) is not None]
        for server, own in runs.items()
    }
    reference = median(values[baseline]) if values[baseline] and statistic.compared else 0.0
    found = {server: spread_of(own, reference) for server, own in values.items()}
    return {server: spread for server, spread in found.items() if spread}


def _count(runs: Sequence[Result]) -> Counts:
    failures: Counter[str] = Counter()
    for run in runs:
        failures.update(_own(run).get("failures") or {})
    return Counts(
        runs=len(runs),
        partial=sum(bool(_own(run).get("partial")) for run in runs),
        completed=sum(int(run.get("completed") or 0) for run in runs),
        failed=sum(int(run.get("failed") or 0) for run in runs),
        failures=dict(failures),
        resent=sum(int(_own(run).get("resent") or 0) for run in runs),
        prompt_mismatch=sum(
            int((_own(run).get("usage") or {}).get("prompt_mismatch") or 0) for run in runs
        ),
    )
