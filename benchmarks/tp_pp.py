"""A model on two ranks: each executor under the same load, and two ranks beside one with two
threads.

    python benchmarks/tp_pp.py --trace azure_llm_2023_conv.csv [--repeats 2]
        [--only pp2 tp2 threads]

Three comparisons of `penstock bench compare`:

pp2, tp2  two stages, or two tensor-parallel ranks: as Ray actors that are called (what all ratios
refer to), in a compiled graph and on rings, and as processes. One at a time is started and
measured: a Ray cluster that is stopped with SIGSTOP counts as lost. threads   two tensor-parallel
processes with a thread each beside one process with two, by turns.

Loads: random prompts in a closed loop, which shows throughput, and some seconds of the Azure
conversation trace as it came, which shows latencies. `--loads light` is two requests at a time, one
for each stage: there a step is short, and what brings it weighs most. `--short` is for a try.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.compare.recipe import BUILT_IN
from penstock.bench.compare.summary import (
    Summary,
    Workload,
    load_comparison,
    load_results,
    summarise,
)
from support import facts
from support.servers import HERE

RAY = "--distributed-executor-backend ray --ray-channel"
CHANNELS = {
    "ray-actor": f"{RAY} actor",
    "ray-graph": f"{RAY} compiled-graph",
    "ray-ring": f"{RAY} ring",
    "mp": "--distributed-executor-backend mp",
}
TITLES = {
    "ray-actor": "ray, actor calls",
    "ray-graph": "ray, compiled graph",
    "ray-ring": "ray, ring",
    "mp": "mp",
    "one-process": "one process, two threads",
    "two-ranks": "two ranks, a thread each",
}
COMMON = "--max-model-len 2048 --threads 2"
WARM_UP = "serve --random-input-len 256 --random-output-len 16 --max-concurrency 8 --num-prompts 16"
LOADS = ("random", "azure", "light")
BAR = 0.9
"""Bar: share of the tokens/s of one process with two threads."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One comparison. Servers are names with words added to `penstock serve MODEL`."""

    title: str
    servers: Mapping[str, str]
    baseline: str
    order: str


CONTESTS = {
    "pp2": Contest(
        "Two stages", {n: f"-pp 2 {w}" for n, w in CHANNELS.items()}, "ray-actor", "sequential"
    ),
    "tp2": Contest(
        "Two tensor-parallel ranks",
        {n: f"-tp 2 {w}" for n, w in CHANNELS.items()},
        "ray-actor",
        "sequential",
    ),
    "threads": Contest(
        "Two ranks and two threads",
        {"one-process": "", "two-ranks": "-tp 2"},
        "one-process",
        "interleaved",
    ),
}
KEYS = {
    "output_throughput": "output tok/s",
    "median_ttft_ms": "TTFT median ms",
    "median_itl_ms": "ITL median ms",
    "p99_itl_ms": "ITL P99 ms",
    "server_cpu_s": "server CPU s",
    "foreign_share": "foreign CPU",
}
COLUMNS = ("load", "ranks", "executor", *KEYS.values(), "failed")
PROSE = (
    "In parentheses: divided by the first row of the same load and ranks. Weights, arithmetic and",
    "seeds are the same everywhere; requests are greedy and of fixed lengths. Published for two",
    "stages on a pair of GPUs, compiled graph to actor calls: 1.28 times the tokens/s, 0.57 of",
    f"the median ITL, 0.49 of its P99. This machine has {os.cpu_count()} CPUs for two ranks, the",
    "engine, the front door and the client. The ranks of a compiled graph keep a CPU each whether",
    "there is a step or not, so everybody else waits for the kernel to take it from them; it",
    "would be otherwise with a CPU to spare for each rank.",
)


def loads(trace: Path, short: bool, names: Sequence[str]) -> dict[str, str]:
    """Words after `penstock bench`, by name."""
    prompts, seconds = (16, 4) if short else (48, 12)
    common = "--temperature 0"
    known = {
        "random": f"serve --random-input-len 256 --random-output-len 128 --max-concurrency 8 "
        f"--num-prompts {prompts} {common}",
        "azure": f"trace '{trace}' --start 120 --duration {seconds} --time-scale 1.2 "
        f"--length-scale 0.25 --max-model-len 2048 {common}",
        "light": f"serve --random-input-len 32 --random-output-len 256 --max-concurrency 2 "
        f"--num-prompts {prompts // 4} {common}",
    }
    return {name: known[name] for name in names}


def command(contest: Contest, parsed: argparse.Namespace, directory: Path) -> list[str]:
    words = [*HERE, "bench", "compare", "--order", contest.order, "--baseline", contest.baseline]
    for name, added in contest.servers.items():
        words += [
            "--server",
            f"{name}={BUILT_IN / 'penstock.toml'}",
            "--args",
            f"{name}={COMMON} {added}",
        ]
    for name, load in loads(parsed.trace.resolve(), parsed.short, parsed.loads).items():
        words += ["--workload", f"{name}: {load}"]
    words += [
        "--tokenizer",
        parsed.model,
        "--model",
        parsed.model,
        "--repeats",
        str(parsed.repeats),
    ]
    words += ["--warm-up", WARM_UP]
    words += [
        "--attempts",
        str(parsed.attempts),
        "--quiet-wait",
        f"{parsed.quiet_wait:g}",
        "--disable-tqdm",
    ]
    return [*words, "--title", contest.title, "--result-dir", str(directory)]


def rows(name: str, summary: Summary) -> list[list[str]]:
    found = []
    for workload in summary.workloads:
        for server in summary.servers:
            counts = summary.counts.get((workload, server))
            found.append(
                [
                    workload.name,
                    name,
                    TITLES[server],
                    *(_cell(summary, workload, server, key) for key in KEYS),
                    f"{counts.failed} of {counts.completed + counts.failed}" if counts else "-",
                ]
            )
    return found


def _cell(summary: Summary, workload: Workload, server: str, key: str) -> str:
    cell = summary.cells.get((workload, server, key))
    if cell is None:
        return "-"
    if not cell.statistic.compared:
        return f"{cell.median:.1%}"
    ratio = f" ({cell.ratio:.2f})" if cell.ratio is not None and server != summary.baseline else ""
    return f"{cell.median:,.1f}{ratio}"


def verdict(summary: Summary) -> list[str]:
    """Two ranks against two threads, by throughput of the closed loop."""
    for workload in summary.workloads:
        cell = summary.cells.get((workload, "two-ranks", "output_throughput"))
        if workload.name == "random" and cell is not None and cell.ratio is not None:
            kept = "kept" if cell.ratio >= BAR else "MISSED"
            return [
                (
                    f"* two ranks give {cell.ratio:.2f} of two threads' tokens/s (bar: {BAR:.2f}, "
                    f"{kept})"
                )
            ]
    return []


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--trace", type=Path, required=True, metavar="CSV")
    parser.add_argument("--only", nargs="+", choices=tuple(CONTESTS), default=list(CONTESTS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS[:2]))
    parser.add_argument("--label", default="", help="added to the names of the results")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--attempts", type=int, default=2, help="of disturbed runs; default: %(default)s"
    )
    parser.add_argument("--quiet-wait", type=float, default=60.0, metavar="S")
    parser.add_argument("--short", action="store_true", help="a quarter of each load")
    parsed = parser.parse_args()
    stem = facts.stem("-".join(["tp-pp", *parsed.label.split()]), parsed.results)
    summaries: dict[str, Summary] = {}
    for name in parsed.only:
        directory = stem / name
        done = subprocess.run(command(CONTESTS[name], parsed, directory), check=False)
        if done.returncode not in (0, 1):  # 1: a server failed, which is a result too.
            sys.exit(done.returncode)
        order = load_comparison(directory)["order"]
        summaries[name] = summarise(load_results(directory), CONTESTS[name].baseline, order)
    about = facts.gather(parsed.peers.expanduser(), (), sys.argv)
    about["versions"]["ray"] = importlib.metadata.version("ray")
    facts.write(stem, lines(summaries, about, parsed), {**about, "runs": f"{stem.name}/"})


def lines(
    summaries: Mapping[str, Summary], about: Mapping[str, Any], parsed: argparse.Namespace
) -> Sequence[str]:
    chosen = loads(parsed.trace, parsed.short, parsed.loads)
    table = [row for name, summary in summaries.items() for row in rows(name, summary)]
    return [
        "# Two ranks, by executor",
        "",
        *facts.said(about),
        f"* medians of {parsed.repeats} repeat(s); added to all servers: `{COMMON}`",
        *(f"* {name}: `{facts.shown([load])}`" for name, load in chosen.items()),
        *(
            line
            for name, summary in summaries.items()
            if name == "threads"
            for line in verdict(summary)
        ),
        "",
        *PROSE,
        "",
        *facts.table(COLUMNS, table),
    ]


if __name__ == "__main__":
    main()
