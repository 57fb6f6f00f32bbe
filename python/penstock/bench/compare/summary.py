"""Result files of a comparison to medians over the repeats, their spread, and ratios to a baseline.

Reads only keys of the result files, so it works on files of any tool that writes them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from penstock.core import PenstockError

COMPARISON_FILE = "comparison.json"
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
_LATENCY = re.compile(r"(median|p[0-9.]+)_(ttft|tpot|itl|e2el)_ms")

Result = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number of a run: its key, how it is written, and whether more is better."""

    key: str
    label: str
    higher_is_better: bool = False
    compared: bool = True
    """Whether its ratio to a baseline is meaningful."""


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
    """A workload, and its point when several runs share the name, for example rates."""

    name: str
    axis: str | None = None
    point: float | None = None

    @property
    def label(self) -> str:
        return self.name if self.point is None else f"{self.name} {self.axis} {self.point:g}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One statistic of one server under one workload, over the repeats that have it."""

    workload: Workload
    server: str
    statistic: Statistic
    median: float
    minimum: float
    maximum: float
    n: int
    ratio: float | None
    """Median divided by the baseline's; None when the baseline has none or zero."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Failures of one server under one workload, partial runs included."""

    workload: Workload
    server: str
    runs: int
    partial: int
    completed: int
    failed: int
    failures: Mapping[str, int]
    """Count by kind; `short` are outputs with fewer tokens than requested."""
    prompt_mismatch: int
    """Outputs whose server counted another number of prompt tokens than requested."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All cells in the order workload, statistic, server; names in the order of the results."""

    baseline: str
    servers: Sequence[str]
    workloads: Sequence[Workload]
    statistics: Sequence[Statistic]
    cells: Mapping[tuple[Workload, str, str], Cell]
    """By workload, server and key of the statistic."""
    counts: Mapping[tuple[Workload, str], Counts]

    def row(self, workload: Workload, key: str) -> list[Cell | None]:
        """One statistic of one workload for each server, in the order of `servers`."""
        return [self.cells.get((workload, server, key)) for server in self.servers]


def summarise(
    results: Iterable[Result], baseline: str | None = None, order: Sequence[str] = ()
) -> Summary:
    """Group the runs by server and workload. Partial runs are counted and do not enter the
    statistics.

    `baseline` is the server that ratios refer to, the first one unless given; `order` are servers
    that come first.

    Raises:
        PenstockError: `baseline` is not among the servers.
    """
    every = list(results)
    complete = [result for result in every if not _own(result).get("partial")]
    servers = _unique([*order, *map(server_of, every)])
    servers = [name for name in servers if name in set(map(server_of, every))]
    if baseline is not None and baseline not in servers:
        raise PenstockError(
            f"baseline {baseline!r} has no results; servers: {', '.join(servers) or 'none'}"
        )
    reference = baseline or (servers[0] if servers else "")
    statistics = _statistics(complete)
    workloads = _unique(map(workload_of, every))
    cells = _cells(complete, workloads, servers, statistics, reference)
    return Summary(reference, servers, workloads, statistics, cells, _counts(every))


def server_of(result: Mapping[str, Any]) -> str:
    """Name of the server; that of the model for files without one, such as those of `vllm bench
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
    """A statistic of one run; None when it is missing or not finite."""
    if key == "input_throughput" and key not in result:
        tokens, duration = (
            _number(result.get("total_input_tokens")),
            _number(result.get("duration")),
        )
        return tokens / duration if tokens is not None and duration else None
    found = _number(result.get(key))
    if found == 0 and _LATENCY.fullmatch(key):
        return None  # vLLM writes 0 for an absent latency
    return found if found is not None else _number((_own(result).get("process") or {}).get(key))


def _own(result: Mapping[str, Any]) -> Mapping[str, Any]:
    found = result.get("penstock")
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))


def _statistics(results: Sequence[Result]) -> list[Statistic]:
    """Throughputs, the percentiles that the runs have (medians once), and the numbers of the
    processes.
    """
    keys = _unique(key for result in results for key in result)
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
    """Keys of one latency, with what is written for them, the median first and then ascending."""
    found = []
    for key in keys:
        match = _LATENCY.fullmatch(key)
        if match and match[2] == latency and match[1] != "p50":
            rank = 50.0 if match[1] == "median" else float(match[1][1:])
            found.append((rank, key, "median" if match[1] == "median" else match[1].upper()))
    return [(key, label) for _, key, label in sorted(found)]


def _cells(
    results: Sequence[Result],
    workloads: Sequence[Workload],
    servers: Sequence[str],
    statistics: Sequence[Statistic],
    baseline: str,
) -> dict[tuple[Workload, str, str], Cell]:
    grouped = _grouped(results)
    cells = {}
    for workload in workloads:
        for statistic in statistics:
            samples = {
                server: _samples(grouped.get((workload, server), ()), statistic.key)
                for server in servers
            }
            reference = median(samples[baseline]) if samples[baseline] else 0.0
            for server, values in samples.items():
                if values:
                    cell = _cell(workload, server, statistic, values, reference)
                    cells[workload, server, statistic.key] = cell
    return cells


def _samples(results: Iterable[Result], key: str) -> list[float]:
    found = (value_of(result, key) for result in results)
    return [value for value in found if value is not None]


def _cell(
    workload: Workload, server: str, statistic: Statistic, values: Sequence[float], reference: float
) -> Cell:
    middle = median(values)
    ratio = middle / reference if reference and statistic.compared else None
    return Cell(workload, server, statistic, middle, min(values), max(values), len(values), ratio)


def _counts(results: Iterable[Result]) -> dict[tuple[Workload, str], Counts]:
    return {key: _count(*key, runs) for key, runs in _grouped(results).items()}


def _grouped(results: Iterable[Result]) -> dict[tuple[Workload, str], list[Result]]:
    grouped: dict[tuple[Workload, str], list[Result]] = {}
    for result in results:
        grouped.setdefault((workload_of(result), server_of(result)), []).append(result)
    return grouped


def _count(workload: Workload, server: str, runs: Sequence[Result]) -> Counts:
    failures: Counter[str] = Counter()
    for run in runs:
        failures.update(_own(run).get("failures") or {})
    return Counts(
        workload,
        server,
        runs=len(runs),
        partial=sum(bool(_own(run).get("partial")) for run in runs),
        completed=sum(int(run.get("completed") or 0) for run in runs),
        failed=sum(int(run.get("failed") or 0) for run in runs),
        failures=dict(failures),
        prompt_mismatch=sum(
            int((_own(run).get("usage") or {}).get("prompt_mismatch") or 0) for run in runs
        ),
    )
