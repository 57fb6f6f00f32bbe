"""Cost of the control channels: plans of 2 KB through ranks that compute nothing.

    python benchmarks/control_overhead.py [--grids 2x1 4x1 1x2] [--repeats 3] [--steps 2000]
        [--spells 3]

Compares processes on shared-memory rings (`mp`) with Ray actors: on the same rings, in a compiled
graph, and called one by one. Each measurement is a process with its own ranks; Ray's have their own
cluster. A grid is tensor x pipeline ranks. Needs Ray; without it only `mp` is measured.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import facts

from penstock_lab.bench.compare.processes import ProcessTree, uninterrupted, wait_until_quiet

TITLES = {
    "mp": "mp: processes, ring",
    "ring": "ray, ring",
    "compiled-graph": "ray, compiled graph",
    "actor": "ray, actor calls",
}
BASELINE = "actor"
MAX_FOREIGN, QUIET_WAIT_S, ATTEMPTS = 0.05, 60.0, 2
PATIENCE_S = 240.0
BENCHMARKS = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Point:
    grid: str
    channel: str


def schedule(
    grids: Sequence[str], channels: Sequence[str], repeats: int
) -> Iterator[tuple[int, Point]]:
    """All grids in each repeat, a grid's channels in sequence, in a new order in each repeat."""
    for repeat in range(repeats):
        for grid in grids:
            for index in range(len(channels)):
                yield repeat, Point(grid, channels[(index + repeat) % len(channels)])


def measure(point: Point, parsed: Any, max_foreign: float) -> dict[str, Any]:
    """The least disturbed of at most ATTEMPTS processes."""
    done: list[dict[str, Any]] = []
    while len(done) < ATTEMPTS and (not done or done[-1]["foreign"] > max_foreign):
        wait_until_quiet(parsed.quiet_wait, max_foreign)
        done.append(_once(point, parsed.steps, parsed.spells))
    return min(done, key=lambda laps: laps["foreign"])


def _once(point: Point, steps: int, spells: int) -> dict[str, Any]:
    tp, pp = point.grid.split("x")
    with TemporaryDirectory(prefix="steps-") as name:
        result, log = Path(name) / "laps.json", Path(name) / "log"
        words = [
            sys.executable,
            "-P",
            "-m",
            "support.steps",
            "--channel",
            point.channel,
            "--tp",
            tp,
            "--pp",
            pp,
        ]
        words += ["--steps", str(steps), "--spells", str(spells), "--result", str(result)]
        # All ranks must find the module under the same path.
        path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
        with uninterrupted():
            tree = ProcessTree(words, {"PYTHONPATH": path}, log, os.sched_getaffinity(0))
        try:
            tree.root.wait(PATIENCE_S)
        finally:
            tree.end()
        if not result.is_file():
            raise RuntimeError(
                f"{point.grid} {point.channel} gave no result:\n{log.read_text(errors='replace')}"
            )
        return dict(json.loads(result.read_text()))


COLUMNS = (
    "tp x pp",
    "channel",
    *("median us", "P99 us", "actor calls / this"),
    *("after 2 s of quiet, ms", "worst"),
    *("idle: ranks", "idle: engine"),
    "foreign",
)
PROSE = (
    "A step is `executor.submit(plan).result()`: the plan becomes bytes, every rank reads and",
    "decodes it, the reading rank answers, the answer is decoded. Ranks compute nothing; where",
    "there are two stages, each waits for 2,304 bytes (a row) of the one before, through the ring",
    "of its wiring or as the graph's own edge. One step at a time. Idle is the share of a core",
    "that all ranks together, and the engine's side, use while nothing is asked; the step after",
    "such a spell is the one that a lone request begins with. Published for compiled graphs over",
    f"actor calls: 8x to 20x. This machine has {os.cpu_count()} CPUs. Ranks of a compiled graph",
    "spin while they wait, each on a core if there is one; with more ranks than CPUs, or with an",
    "engine that needs one too, they keep the core from other processes until the kernel takes it.",
    "On a ring no step waits for ranks that do not answer: of several",
    "tensor-parallel ranks that compute nothing, one is on the way of a step.",
)


def row(point: Point, runs: Sequence[Mapping[str, Any]], baseline: float) -> list[str]:
    def mid(values: Sequence[float]) -> float:
        return statistics.median(values)

    medians = [mid(run["us"]) for run in runs]
    tails = [statistics.quantiles(run["us"], n=100, method="inclusive")[98] for run in runs]
    after = [lap / 1000 for run in runs for lap in run["after_quiet_us"]]
    spread = f" ({min(medians):,.0f}..{max(medians):,.0f})" if len(medians) > 1 else ""
    return [
        point.grid,
        TITLES[point.channel],
        f"{mid(medians):,.0f}{spread}",
        f"{mid(tails):,.0f}",
        f"{baseline / mid(medians):.1f}x",
        f"{mid(after):.2f}",
        f"{max(after):.2f}",
        f"{mid([run['idle_ranks'] for run in runs]):.3f}",
        f"{mid([run['idle_engine'] for run in runs]):.3f}",
        f"{mid([run['foreign'] for run in runs]):.1%}",
    ]


def rows(runs: Mapping[Point, Sequence[Mapping[str, Any]]]) -> Iterator[list[str]]:
    for point, found in runs.items():
        compared = runs.get(Point(point.grid, BASELINE), ())
        medians = [statistics.median(run["us"]) for run in compared]
        yield row(point, found, statistics.median(medians) if medians else float("nan"))


def lines(runs: Mapping[Point, Sequence[Mapping[str, Any]]], about: Mapping[str, Any]) -> list[str]:
    first = next(iter(runs.values()))
    return [
        "# Control overhead of a step",
        "",
        *facts.said(about),
        f"* {len(first)} interleaved repeat(s), medians of their medians and P99s",
        f"* {len(first[0]['us']):,} steps of {first[0]['plan_bytes']:,} bytes in each",
        "",
        *PROSE,
        "",
        *facts.table(COLUMNS, rows(runs)),
    ]


def compact(run: Mapping[str, Any]) -> dict[str, Any]:
    """Percentiles instead of thousands of samples."""
    cuts = statistics.quantiles(run["us"], n=100, method="inclusive")
    kept = {f"p{cut}_us": round(cuts[cut - 1], 1) for cut in (1, 10, 50, 90, 99)}
    return {
        **{key: value for key, value in run.items() if key != "us"},
        **kept,
        "steps": len(run["us"]),
    }


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--grids", nargs="+", default=["2x1", "4x1", "1x2"], metavar="TPxPP")
    parser.add_argument("--channels", nargs="+", choices=tuple(TITLES), default=list(TITLES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--spells", type=int, default=3, help="of quiet in each repeat; default: %(default)s"
    )
    parser.add_argument("--quiet-wait", type=float, default=QUIET_WAIT_S, metavar="S")
    parsed = parser.parse_args()
    channels = parsed.channels
    if importlib.util.find_spec("ray") is None:
        print("no Ray here: pip install 'penstock[ray]'; mp only")
        channels = ["mp"]
    runs: dict[Point, list[dict[str, Any]]] = {
        Point(grid, channel): [] for grid in parsed.grids for channel in channels
    }
    for _, point in schedule(parsed.grids, channels, parsed.repeats):
        runs[point].append(measure(point, parsed, MAX_FOREIGN))
        print(" | ".join(row(point, runs[point][-1:], float("nan"))), flush=True)
    about = facts.gather(parsed.peers.expanduser(), (), sys.argv)
    if len(channels) > 1:
        about["versions"]["ray"] = importlib.metadata.version("ray")
    data = [
        {"grid": p.grid, "channel": p.channel, "runs": [*map(compact, each)]}
        for p, each in runs.items()
    ]
    facts.write(
        facts.stem("control-overhead", parsed.results),
        lines(runs, about),
        {**about, "points": data},
    )


if __name__ == "__main__":
    main()
