"""Medians, ratios and the result files: JSON with every run, Markdown to read, SVG to look at."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from peers.plot import Panel, bars
from peers.workloads import WORKLOADS

# For each workload the numbers that are compared, with the direction in which better lies.
COMPARED = {
    "W1": (("output_throughput", "output tok/s", "higher"), ("median_tpot_ms", "TPOT median", "lower")),
    "W2": (("output_throughput", "output tok/s", "higher"), ("p99_itl_ms", "ITL P99", "lower")),
    "W3": (("output_throughput", "output tok/s", "higher"), ("p99_itl_ms", "ITL P99", "lower")),
    "W4": (("input_throughput", "prompt tok/s", "higher"), ("median_ttft_ms", "TTFT median", "lower")),
    "W5": (("output_throughput", "output tok/s", "higher"), ("p99_ttft_ms", "TTFT P99", "lower")),
}
COLUMNS = (
    "| | output tok/s | prompt tok/s | TTFT ms | TPOT ms | ITL ms | PSS MB "
    "| CPU s server / client | foreign CPU | failed |"
)
EXPLANATION = """\
Every contender ran on the same machine in the same session, one after another within each repeat; those
that waited were stopped. One client for all servers: `vllm bench serve`, random prompts, greedy, EOS
ignored, a new seed for each workload and repeat, the same for all. OpenVINO GenAI has no server: it was
called directly with prompts of the same lengths, so no HTTP, tokenization or client is in its numbers.
Latencies are mean / median / P99. Output tok/s counts completed requests only. Foreign CPU is the share of
the machine that other processes used."""
LATENCIES = ("ttft", "tpot", "itl")
MEMORY_AFTER = "W3"


@dataclass
class Run:
    """One contender, one workload, one repeat."""

    contender: str
    workload: str
    repeat: int
    seed: int
    numbers: dict[str, float]


@dataclass
class Report:
    """Everything that goes into the files."""

    title: str
    started: str
    command: str
    versions: dict[str, str]
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    hidden: dict[str, str] = field(default_factory=dict)

    def medians(self, contender: str, workload: str) -> dict[str, float]:
        """Median of each number over the repeats; empty when there was no run."""
        rows = [run.numbers for run in self.runs if (run.contender, run.workload) == (contender, workload)]
        return {name: median(row[name] for row in rows) for name in rows[0]} if rows else {}

    def names(self) -> Sequence[str]:
        """Contenders in the order in which they started."""
        return list(self.contenders)

    def workloads(self) -> Sequence[str]:
        """Workloads that have at least one run, in their own order."""
        seen = {run.workload for run in self.runs}
        return [name for name in WORKLOADS if name in seen]

    def write(self, stem: Path) -> None:
        """Write `stem`.json, .md and .svg, with the directories of this machine replaced by their names."""
        data = asdict(self)
        del data["hidden"]
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".json").write_text(self._hide(json.dumps(data, indent=1)) + "\n")
        stem.with_suffix(".md").write_text(self._hide(markdown(self)))
        stem.with_suffix(".svg").write_text(
            bars(self.title, [_panel(self, name) for name in self.workloads()])
        )

    def _hide(self, text: str) -> str:
        for path, name in sorted(self.hidden.items(), key=lambda item: -len(item[0])):
            text = text.replace(path, name)
        return text


def _panel(report: Report, workload: str) -> Panel:
    """The first compared number of a workload, which is a throughput, for everybody who ran it."""
    key, label, _ = COMPARED[workload][0]
    rows = [(name, report.medians(name, workload).get(key, 0.0)) for name in report.names()]
    return f"{workload}: {WORKLOADS[workload].describe()}: {label}", [row for row in rows if row[1] > 0]


def _triple(numbers: dict[str, float], latency: str) -> str:
    return " / ".join(
        f"{numbers[f'{statistic}_{latency}_ms']:.1f}" for statistic in ("mean", "median", "p99")
    )


def _row(name: str, n: dict[str, float]) -> str:
    cells = (
        f"{n['output_throughput']:.1f}",
        f"{n['input_throughput']:.0f}",
        *(_triple(n, latency) for latency in LATENCIES),
        f"{n['pss_mb']:.0f}",
        f"{n['server_cpu_s']:.1f} / {n['client_cpu_s']:.1f}",
        f"{n['foreign_share']:.1%}",
        f"{n['failed']:.0f}",
    )
    return f"| {name} | " + " | ".join(cells) + " |"


def _ratio(mine: float, theirs: float) -> str:
    return f"{mine / theirs:.2f}" if theirs > 0 and mine > 0 else "n/a"


def _ratio_table(report: Report) -> list[str]:
    first, *others = report.names()
    heading = " | ".join(["workload", "number", "better is", first, *(f"/ {name}" for name in others)])
    lines = [f"## {first} divided by each peer", "", f"| {heading} |", "|---" * (4 + len(others)) + "|"]
    for workload in report.workloads():
        mine = report.medians(first, workload)
        for key, label, better in COMPARED[workload] if mine else ():
            theirs = [report.medians(name, workload).get(key, 0.0) for name in others]
            ratios = " | ".join(_ratio(mine[key], value) for value in theirs)
            lines.append(f"| {workload} | {label} | {better} | {mine[key]:.1f} | {ratios} |")
    return [*lines, ""]


def _contender_table(report: Report) -> list[str]:
    lines = [
        "## Contenders",
        "",
        f"| | arithmetic | ready s | PSS MB after {MEMORY_AFTER} |",
        "|---|---|---|---|",
    ]
    for name, facts in report.contenders.items():
        memory = report.medians(name, MEMORY_AFTER).get("pss_mb")
        shown = f"{memory:.0f}" if memory else "not run"
        lines.append(f"| {name} | {facts['numerics']} | {facts['ready_s']:.2f} | {shown} |")
    lines.append("")
    for name, facts in report.contenders.items():
        variables = [f"{key}={value}" for key, value in facts["environment"].items()]
        lines.append(f"* {name}: `{' '.join([*variables, shlex.join(facts['command'])])}`")
    return [*lines, ""]


def _workload_tables(report: Report) -> list[str]:
    lines = []
    for workload in report.workloads():
        lines += [f"## {workload}: {WORKLOADS[workload].describe()}", "", COLUMNS, "|---" * 10 + "|"]
        rows = ((name, report.medians(name, workload)) for name in report.names())
        lines += [_row(name, numbers) for name, numbers in rows if numbers]
        lines.append("")
    return lines


def markdown(report: Report) -> str:
    """The whole report. Latencies are mean / median / P99; numbers are medians over the repeats."""
    repeats = max((run.repeat for run in report.runs), default=0)
    lines = [
        f"# {report.title}", "",
        f"{report.started}; {repeats} repeats, medians. `{report.command}`", "",
        EXPLANATION, "",
        *(f"* {name}: {version}" for name, version in report.versions.items()), "",
        *_contender_table(report), *_ratio_table(report), *_workload_tables(report),
    ]  # fmt: skip
    if report.troubles:
        lines += ["## Trouble", "", *(f"* {line}" for line in report.troubles), ""]
    return "\n".join(lines)
