"""The value of KV tiers: repeated prompts with tiers behind the pool, and without.

    python benchmarks/kv_rounds.py [--only smollm2 10k 50k] [--tiers none ram disk both redis]

Follows the method of the published comparison of tiered caches: random prompts, the same in every
round, one output token, the engine's own prefix cache off, and the mean of later rounds against an
engine without tiers. Long prompts use a random checkpoint in SmolLM2's shape with a longer context.
Disk is a directory in `--directory` (a fresh one for each server, in the page cache as far as it
fits). The script starts Redis.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from support import facts, stores
from support.checkpoints import long_context
from support.servers import HERE, Server

from penstock.core import PenstockError
from penstock_lab.bench.compare.processes import wait_until_quiet
from penstock_lab.bench.compare.server_under_test import first_line_with_digit
from penstock_lab.bench.rounds import Figures, read_results, summarise

TIERS = ("none", "ram", "disk", "both", "redis")
QUIET_WAIT_S, MAX_FOREIGN = 60.0, 0.05
PUBLISHED = {"ram": 24.0, "disk": 10.0}
"""Throughput relative to no tiers, at 10k tokens."""


@dataclass(frozen=True, slots=True)
class Case:
    lengths: Sequence[int]
    prompts: int
    concurrency: int
    rounds: int
    words: str
    """Arguments added to `penstock serve MODEL`."""
    ram: str
    long: bool = False


CASES = {
    "smollm2": Case((100, 1000, 4000, 7000), 8, 4, 3, "--kv-cache-memory-bytes 1GiB", "3GiB"),
    "10k": Case(
        (10_000,), 8, 4, 3, "--kv-cache-memory-bytes 2GiB --max-model-len 12000", "3GiB", long=True
    ),
    "50k": Case(
        (50_000,), 2, 2, 2, "--kv-cache-memory-bytes 3GiB --max-model-len 52000", "4GiB", long=True
    ),
}
POSITIONS = 65536
Measured = dict[str, dict[str, dict[str, Any]]]
"""By case, tier and workload."""


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS))
    parser.add_argument("--prompts", type=int, help="of a round; default: by case")
    parser.add_argument("--rounds", type=int, help="default: by case")
    parser.add_argument("--label", default="", help="added to the names of the results")
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="of the disk tier"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what today's results with this label have already; --prompts and --rounds as "
        "then",
    )
    parser.add_argument("--quiet-wait", type=float, default=QUIET_WAIT_S, metavar="S")
    parsed = parser.parse_args()
    cases = {name: case_of(name, parsed) for name in parsed.only}
    stem = facts.stem("-".join(["kv-rounds", *parsed.label.split()]), parsed.results)
    kept = stem.with_name(stem.name + ".json")
    measured: Measured = {}
    if parsed.resume and kept.is_file():
        measured = json.loads(kept.read_text())["measured"]
        cases = {name: case_of(name, parsed) for name in measured} | cases
    about = facts.gather(parsed.peers.expanduser(), (), sys.argv)
    about["versions"]["redis"] = first_line_with_digit([stores.REDIS, "--version"]) or "none"
    for name in parsed.only:
        for tier in parsed.tiers:
            if tier in measured.get(name, {}):
                print(f"{name} {tier}: measured before, in {kept.name}")
                continue
            if reason := stores.missing(tier):
                print(f"{name} {tier}: skipped, {reason}")
                continue
            measured.setdefault(name, {})[tier] = measure(name, cases[name], tier, parsed)
            facts.write(stem, lines(table(measured), about, cases), {**about, "measured": measured})
    plot(measured, stem.with_name(stem.name + ".png"))


def case_of(name: str, parsed: argparse.Namespace) -> Case:
    asked = {key: getattr(parsed, key) for key in ("prompts", "rounds") if getattr(parsed, key)}
    return replace(CASES[name], **asked)


def measure(name: str, case: Case, tier: str, parsed: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=parsed.directory) as scratch, redis(tier) as url:
        words = serve_words(case, tier, Path(scratch), url, parsed)
        wait_until_quiet(parsed.quiet_wait, MAX_FOREIGN)
        results = Path(scratch) / "results"
        with Server(words, (), Path(scratch) / "server.log") as server:
            subprocess.run(bench_words(case, server.url, results, parsed), check=False)
        found = {}
        for summary in summarise(read_results(results)):
            found[summary.workload] = {
                "first": asdict(summary.first) if summary.first else None,
                "later": asdict(summary.later) if summary.later else None,
                "failed": summary.failed,
            }
            print(f"{name} {tier} {summary.workload}: {shown(summary.later)}", flush=True)
        return found


def serve_words(
    case: Case, tier: str, scratch: Path, url: str, parsed: argparse.Namespace
) -> list[str]:
    model = parsed.model
    if case.long:
        peers = parsed.peers.expanduser()
        model = str(long_context(peers / "long-context", peers / "hf-bf16", POSITIONS))
    ram, disk = ["--kv-tier", f"ram:{case.ram}"], ["--kv-tier", f"disk:{scratch / 'kv'},8GiB"]
    tiers = {"none": [], "ram": ram, "disk": disk, "both": ram + disk, "redis": ["--kv-tier", url]}
    return ["serve", model, "--no-enable-prefix-caching", *case.words.split(), *tiers[tier]]


def bench_words(case: Case, url: str, results: Path, parsed: argparse.Namespace) -> list[str]:
    tokenizer = str(parsed.peers.expanduser() / "hf-bf16") if case.long else parsed.model
    return [
        *HERE,
        *(
            "bench",
            "rounds",
            "--base-url",
            url,
            "--tokenizer",
            tokenizer,
            "--prompt-ids",
            "--disable-tqdm",
        ),
        *("--lengths", ",".join(map(str, case.lengths)), "--rounds", str(case.rounds)),
        *("--num-prompts", str(case.prompts), "--max-concurrency", str(case.concurrency)),
        *("--result-dir", str(results)),
    ]


@contextmanager
def redis(tier: str) -> Iterator[str]:
    """Start Redis with room for everything on loopback; nothing for other tiers."""
    if tier != "redis":
        yield ""
        return
    with stores.redis() as port:
        yield f"redis://127.0.0.1:{port}/0"


def shown(figures: Figures | None) -> str:
    if figures is None:
        return "nothing"
    return (
        f"TTFT {figures.ttft_ms:,.1f} ms, {figures.throughput:,.0f} tok/s, "
        f"{figures.cached_share:.1%} cached"
    )


def table(measured: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[list[str]]:
    for name, by_tier in measured.items():
        workloads = next(iter(by_tier.values()))
        for workload in workloads:
            plain = by_tier.get("none", {}).get(workload, {}).get("later")
            for tier, found in by_tier.items():
                yield [f"{name} {workload}", tier, *_cells(found.get(workload, {}), plain)]


def _cells(found: Mapping[str, Any], plain: Mapping[str, float] | None) -> list[str]:
    first, later = found.get("first"), found.get("later")
    if not first or not later:
        return ["-"] * 7
    ratio = f"{later['throughput'] / plain['throughput']:.1f}x" if plain else "-"
    cold = f"{first['throughput'] / plain['throughput']:.2f}x" if plain else "-"
    faster = f"{plain['ttft_ms'] / later['ttft_ms']:.1f}x" if plain else "-"
    return [
        f"{later['ttft_ms']:,.1f}",
        faster,
        f"{later['throughput']:,.0f}",
        ratio,
        f"{later['cached_share']:.1%}",
        cold,
        str(found["failed"]),
    ]


def lines(
    rows: Iterable[Sequence[str]], about: Mapping[str, Any], chosen: Mapping[str, Case]
) -> list[str]:
    cases = (
        f"* {name}: {case.prompts} prompts, concurrency {case.concurrency}, {case.rounds} rounds"
        for name, case in chosen.items()
    )
    columns = (
        *(
            "prompt/output",
            "tier",
            "TTFT ms",
            "better",
            "total tok/s",
            "better",
            "cached",
            "round 1",
            "failed",
        ),
    )
    return [
        "# Rounds of the same prompts, by tier",
        "",
        *facts.said(about),
        *cases,
        "",
        "Means of the rounds after the first; `better` is against no tier, `round 1` the",
        "throughput of the first round against no tier, which is what storing costs. The engine's",
        "own prefix cache is off. Published for 10k tokens: 24 times the throughput from RAM, 10",
        "to 12 times from storage.",
        "",
        *facts.table(columns, rows),
    ]


def plot(measured: Mapping[str, Mapping[str, Mapping[str, Any]]], path: Path) -> None:
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise PenstockError("the plot needs matplotlib: pip install 'penstock[plot]'") from error
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for tier in TIERS[1:]:
        points = []
        for by_tier in measured.values():
            for workload, found in by_tier.get(tier, {}).items():
                plain = by_tier.get("none", {}).get(workload, {}).get("later")
                if plain and found.get("later"):
                    ratio = found["later"]["throughput"] / plain["throughput"]
                    points.append((int(workload.split("/")[0]), ratio))
        if points:
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=tier)
    for tier, ratio in PUBLISHED.items():
        axes.plot(
            [10_000], [ratio], marker="*", linestyle="", color="grey", label=f"published, {tier}"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("throughput, times that without tiers")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
