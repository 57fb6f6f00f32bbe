"""A comparison as text: a line for each run, and a table for each workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock_lab.bench.compare.summary import (
    Counts,
    Result,
    Spread,
    Summary,
    Workload,
    value_of,
    workload_of,
)
from penstock_lab.bench.table import render

_LIVE = (
    ("out", "output_throughput", "tok/s"),
    ("in", "input_throughput", "tok/s"),
    ("TTFT", "median_ttft_ms", "ms"),
    ("TPOT", "median_tpot_ms", "ms"),
    ("ITL P99", "p99_itl_ms", "ms"),
    ("PSS", "pss_mb", "MiB"),
    ("foreign CPU", "foreign_share", ""),
)


def run_line(result: Result) -> str:
    """One run in one line."""
    own = result["penstock"]
    parts = []
    for label, key, unit in _LIVE:
        value = value_of(result, key)
        if value is not None:
            parts.append(f"{label} {number(value)} {unit}".rstrip())
    if result["failed"]:
        parts.append(f"FAILED {result['failed']} ({_kinds(own.get('failures') or {})})")
    if own.get("partial"):
        parts.append("partial")
    return f"{own['server']} {workload_of(result).label}.{own['repeat']}: {', '.join(parts)}"


def lines(summary: Summary, comparison: Mapping[str, Any]) -> Iterator[str]:
    """The summary: servers, workloads, failures. `comparison` is comparison.json."""
    yield from _servers(summary, comparison)
    for workload in summary.workloads:
        yield ""
        yield from _workload(summary, workload)
    troubles = comparison.get("troubles") or ()
    if troubles:
        yield ""
        yield "Trouble"
        yield from (f"  {line}" for line in troubles)


def number(value: float) -> str:
    """A number with three or four significant digits."""
    size = abs(value)
    decimals = 0 if size >= 1000 else 1 if size >= 10 else 2
    return f"{value:,.{decimals}f}"


def _servers(summary: Summary, comparison: Mapping[str, Any]) -> Iterator[str]:
    yield f"Medians (lowest..highest), x: divided by {summary.baseline}"
    for name, facts in (comparison.get("servers") or {}).items():
        parts = (facts.get("version"), facts.get("note"), f"ready after {facts['ready_s']:.2f} s")
        yield f"  {name}: {'; '.join(part for part in parts if part)}"


def _workload(summary: Summary, workload: Workload) -> Iterator[str]:
    rows = []
    for statistic in summary.statistics:
        cells = summary.row(workload, statistic.key)
        if any(cells):
            known = zip(summary.servers, cells, strict=True)
            words = [_cell(cell, server != summary.baseline) for server, cell in known]
            rows.append([statistic.label, *words])
    counts = [summary.counts.get((workload, server)) for server in summary.servers]
    rows.append(["failed", *map(_failed, counts)])
    if any(count and count.resent for count in counts):
        rows.append(["sent again", *(str(c.resent) if c else "-" for c in counts)])
    if any(count and count.prompt_mismatch for count in counts):
        rows.append(
            ["other prompt length", *(str(c.prompt_mismatch) if c else "-" for c in counts)]
        )
    yield from render([workload.label, *summary.servers], rows)


def _cell(cell: Spread | None, compared: bool) -> str:
    if cell is None:
        return "-"
    spread = f" ({number(cell.low)}..{number(cell.high)})" if cell.n > 1 else ""
    ratio = f"  x{cell.ratio:.2f}" if cell.ratio is not None and compared else ""
    return f"{number(cell.median)}{spread}{ratio}"


def _failed(counts: Counts | None) -> str:
    if counts is None:
        return "-"
    kinds = f" ({_kinds(counts.failures)})" if counts.failures else ""
    partial = f", {counts.partial} of {counts.runs} runs partial" if counts.partial else ""
    return f"{counts.failed} of {counts.completed + counts.failed}{kinds}{partial}"


def _kinds(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in failures.items())
