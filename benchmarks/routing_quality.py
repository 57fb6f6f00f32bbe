"""Quality of routing: profiles, peers' rules and an oracle on modelled fleets.

    python benchmarks/routing_quality.py --trace mooncake_conversation.jsonl \\
        --trace azure_llm_2023_conv.csv

Replays traces and synthetic workloads like `penstock route replay` (`penstock_lab.bench.routing`),
in virtual time. The default profile was tuned on the first 2,000 seconds of the Mooncake trace, and
on synthetic workloads with another seed.
"""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support import facts

from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.routing import (
    POLICIES,
    WORKLOADS,
    Fleet,
    Summary,
    Workload,
    from_trace,
    made_up,
    policy,
    replay,
)
from penstock_lab.bench.traces import Arrival, read

REPLICAS = 8
WINDOWS = {
    "mooncake_conversation": (2000.0, 1000.0, (1.5, 2.0, 2.5)),
    "azure_llm_2023_conv": (0.0, 1200.0, (12.0,)),
}
"""For each trace: start and duration of the replayed window in seconds, and factors by which it is
played faster. Parameters of the default profile were tuned on the first 2,000 seconds of the first
trace, so its window begins after them.
"""
SECONDS = {"bursts": 3600.0}
"""Duration in seconds of synthetic workloads; those that are not listed last two minutes."""
MEASURED = Path(__file__).parent / "profiles" / "smollm2-2-cores.json"
"""Profile of a simulated engine that was fitted to a real one (sim_calibration.py)."""
SEED = 7
"""Seed of the workloads. It differs from the seed with which parameters were tuned."""
SMALL = "tenants, SmolLM2-135M"
COLUMNS = (
    "profile",
    "TTFT mean ms",
    "P50",
    "P99",
    "TPOT mean ms",
    "P99",
    "tokens/s",
    "cached",
    "unevenness",
    "mean TTFT of the oracle's",
)
PROSE = (
    f"{REPLICAS} replicas of the preset `h100` (Qwen3-8B on one H100, as measured on 2026-11-26",
    "with prompts launched kernel by kernel), one gateway, metrics read every 50 ms. All policies",
    "see requests from when they are sent, those of peers too: more than llm-d's own picker sees.",
    "`llm-d` is queue x 2, kv-use x 2, prefix x 3; `cache-aware` the rule of SMG with the values",
    "of its command line.",
    "`oracle` knows queues, caches and the lengths of answers, and takes the least sum of TTFT,",
    "own end and delay of others: greedy, so a yardstick and not a bound. Unevenness is the",
    "coefficient of variation of KV use over the replicas. The last workload is that of",
    "routing_real.py, on three replicas of a profile that was measured on a real engine.",
)


def workloads(traces: list[Path]) -> dict[str, Workload]:
    made: dict[str, Workload] = {}
    for path in traces:
        trace = read(path)
        start, seconds, rates = WINDOWS.get(path.stem, (0.0, None, (1.0,)))
        for rate in rates:
            made[f"{path.stem} x {rate:g}"] = from_trace(trace, rate, start, seconds)
    for name in WORKLOADS:
        made[name] = made_up(name, 1.0, SECONDS.get(name, 120.0), SEED)
    made[SMALL] = tenants_of_a_small_model()
    return made


def tenants_of_a_small_model() -> Workload:
    """A workload of 14 tenants: each has a shared prefix of 1,088 tokens, with questions of 62 and
    answers of 24 tokens, for 16 minutes.
    """
    rng, at, arrivals = random.Random(SEED), 0.0, []
    for number in range(3840):
        at += rng.expovariate(4.0)
        tenant = rng.randrange(14)
        names = tuple(tenant * 1000 + block for block in range(17))
        arrivals.append(Arrival(at, 1150, 24, (*names, 1_000_000 + number), 64))
    return Workload(SMALL, 64, tuple(arrivals))


def measured_fleet() -> Fleet:
    """Three simulated replicas with one core and 6,400 tokens of KV each."""
    profile = json.loads(MEASURED.read_text())
    profile["num_blocks"] = 200
    profile["timing"]["prompt_us_per_token"] *= 2.0
    return Fleet(engines=(profile,) * 3, seed=SEED)


def measure(workload: Workload, fleet: Fleet) -> list[Summary]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: replay(workload, policy(name), fleet), POLICIES))


def rows(found: list[Summary]) -> list[list[str]]:
    oracle = next(one.ttft_mean for one in found if one.policy == "oracle")
    return [
        [
            one.policy,
            f"{one.ttft_mean:,.0f}",
            f"{one.ttft_p50:,.0f}",
            f"{one.ttft_p99:,.0f}",
            f"{one.tpot_mean:.1f}",
            f"{one.tpot_p99:.1f}",
            f"{one.tokens_per_s:,.0f}",
            f"{one.cached:.1%}",
            f"{one.unevenness:.2f}",
            f"{one.ttft_mean / oracle:.2f}",
        ]
        for one in found
    ]


def chart(results: dict[str, list[Summary]]) -> list[Plot]:
    """Chart of the mean TTFT by the speed at which the Mooncake trace is played."""
    rated = {
        float(name.rpartition(" ")[2]): found
        for name, found in results.items()
        if name.startswith("mooncake_conversation")
    }
    if not rated:
        return []
    series = [
        Series(
            name,
            style,
            tuple(
                Point(rate, next(one.ttft_mean for one in found if one.policy == name) / 1e3)
                for rate, found in rated.items()
            ),
        )
        for style, name in enumerate(POLICIES)
    ]
    title = "Mean TTFT, Mooncake conversation"
    across = Axis("Speed of the trace", "times", log=False, ticks=tuple(rated))
    up = Axis("Mean TTFT", "s", log=True)
    return [Plot("mooncake", title, title, across, up, tuple(series))]


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--trace", type=Path, action="append", default=[], help="repeatable")
    parsed = parser.parse_args()
    results: dict[str, list[Summary]] = {}
    about = facts.gather(parsed.peers, [], sys.argv)
    for name, workload in workloads(parsed.trace).items():
        fleet = Fleet(engines=("h100",) * REPLICAS, seed=SEED)
        if workload.name == SMALL:
            fleet = measured_fleet()
        results[name] = measure(workload, fleet)
        print(name, *(f"{one.policy} {one.ttft_mean:.0f}" for one in results[name]), flush=True)
    write(parsed.results, about, results)


def write(directory: Path, about: dict[str, Any], results: dict[str, list[Summary]]) -> None:
    said = ["# Quality of routing", "", *facts.fact_lines(about), f"* seed {SEED}", "", *PROSE]
    for name, found in results.items():
        many = f"{found[0].requests:,} requests, {found[0].failed} failed"
        said += ["", f"## {name}", "", many, "", *facts.table(COLUMNS, rows(found))]
    stem = facts.stem("routing-quality", directory)
    data = {**about, "results": {name: list(map(asdict, own)) for name, own in results.items()}}
    facts.write(stem, said, data)
    print("wrote", *drawing.write(drawing.draw(chart(results)), stem).values())


if __name__ == "__main__":
    main()
