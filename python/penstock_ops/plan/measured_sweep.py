"""Reads the measured loads of a sweep from result files of `penstock bench sweep` or `vllm bench
serve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from penstock.core import PenstockError
from penstock_lab.bench.report.files import ReadResults, read
from penstock_lab.bench.report.runs import Run, collect
from penstock_ops.plan.closed_loop import Lengths

ALIKE = 0.1
"""Maximum relative difference between the average lengths of a measured load and the predicted
ones.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the repeats of one load."""

    clients: int
    throughput: float
    """Output tokens per second."""
    tpot_ms: float | None
    ttft_ms: float | None


def read_sweep(paths: Sequence[Path], lengths: Lengths) -> dict[int, Measured]:
    """The loads of result files, or of directories with such files, by number of clients. Loads
    with other lengths are left out. Raises PenstockError if none remains.
    """
    runs = [run for path in paths for run in collect(_found(path)).runs]
    loads: dict[int, list[Run]] = {}
    for run in runs:
        clients = _clients(run)
        if clients is not None and _alike(run, lengths) and run.value("output_throughput"):
            loads.setdefault(clients, []).append(run)
    if not loads:
        seen = ", ".join(dict.fromkeys(_lengths(run) for run in runs)) or "no result of a benchmark"
        raise PenstockError(
            f"--measured {' '.join(map(str, paths))}: no load of a number of clients with "
            f"{lengths.isl}/{lengths.osl} tokens; the files have {seen}"
        )
    return {clients: _median(clients, loads[clients]) for clients in sorted(loads)}


def _found(path: Path) -> ReadResults:
    if path.is_dir():
        return read(path)
    if not path.is_file():
        raise PenstockError(f"--measured {path}: no such file or directory")
    beside = read(path.parent)
    results = tuple(each for each in beside.results if each[0] == path.name)
    skipped = next((each for each in beside.skipped if each.name == path.name), None)
    if skipped is not None:
        raise PenstockError(f"--measured {path}: {skipped.reason}")
    return replace(beside, results=results)


def _clients(run: Run) -> int | None:
    point = run.workload.point if run.workload.axis == "concurrency" else None
    found = run.value("max_concurrency") if point is None else point
    return int(found) if found is not None and found >= 1 else None


def _averages(run: Run) -> tuple[float, float] | None:
    """Average input and output tokens of a request; None if no request succeeded."""
    inputs, outputs = run.value("total_input_tokens"), run.value("total_output_tokens")
    done = int(run.result["completed"])
    return (inputs / done, outputs / done) if done and inputs and outputs else None


def _alike(run: Run, lengths: Lengths) -> bool:
    found = _averages(run)
    wanted = (lengths.isl, lengths.osl)
    return found is not None and all(
        abs(own - want) <= ALIKE * want for own, want in zip(found, wanted, strict=True)
    )


def _lengths(run: Run) -> str:
    found = _averages(run)
    return f"{found[0]:.0f}/{found[1]:.0f}" if found else "no completed request"


def _median(clients: int, runs: Sequence[Run]) -> Measured:
    def value(key: str) -> float | None:
        return median(found) if (found := list(_values(runs, key))) else None

    return Measured(
        clients,
        value("output_throughput") or 0.0,
        value("mean_tpot_ms"),
        value("median_ttft_ms"),
    )


def _values(runs: Sequence[Run], key: str) -> Iterator[float]:
    for run in runs:
        if (found := run.value(key)) is not None:
            yield found
