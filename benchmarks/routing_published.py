"""Plain and load-aware routing before three modelled replicas, beside a published comparison.

    python benchmarks/routing_published.py [--repeats 4] [--compression 20]

Source 000 (docs/sources.md) compares a plain route with a route that sees the load, before three
replicas of QwQ-32B with vLLM 0.7.2, each TP2 x PP2. Here `penstock bench serve` sends the same load
through a `penstock gateway` to three servers of `penstock sim`. Step times are divided by
`--compression`, and the results are multiplied by it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import facts
from support.servers import HERE, Server

from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.routing import policy
from penstock_lab.bench.routing.replay import unevenness

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "plain": {
        "duration": 2362.70,
        "total_input_tokens": 1_014_085,
        "total_output_tokens": 537_817,
        "output_throughput": 227.63,
        "total_token_throughput": 656.83,
        "mean_ttft_ms": 10909.18,
        "median_ttft_ms": 2446.06,
        "p99_ttft_ms": 119308.83,
        "mean_tpot_ms": 114.18,
        "median_tpot_ms": 113.00,
        "p99_tpot_ms": 158.03,
        "mean_itl_ms": 113.69,
        "median_itl_ms": 103.10,
        "p99_itl_ms": 109.65,
    },
    "aware": {
        "duration": 2325.10,
        "total_input_tokens": 1_014_085,
        "total_output_tokens": 538_158,
        "output_throughput": 231.46,
        "total_token_throughput": 667.60,
        "mean_ttft_ms": 7335.87,
        "median_ttft_ms": 2413.13,
        "p99_ttft_ms": 106624.40,
        "mean_tpot_ms": 117.26,
        "median_tpot_ms": 114.39,
        "p99_tpot_ms": 198.15,
        "mean_itl_ms": 115.99,
        "median_itl_ms": 103.84,
        "p99_itl_ms": 109.88,
    },
}
"""The source's two result blocks, by route."""
REPLICAS, CLIENTS, REQUESTS = 3, 30, 300
LOAD = (
    *("--random-prefix-len", "1000", "--random-input-len", "2400", "--random-output-len", "1800"),
    *("--random-range-ratio", "0.66667"),
    *("--num-prompts", str(REQUESTS), "--max-concurrency", str(CLIENTS)),
)
"""The source's load: --random-range-ratio 0.2 with 4,000 and 3,000 tokens was lengths from 0.2 L to
L in the benchmark_serving.py of its time, and is 0.8 L to 1.2 L today. Its totals of 3,380 and
1,793 tokens a request show the former.
"""
KV_TOKENS = 48_000
"""KV pool of a replica: an assumption, because the source names no device. Ten requests of this
load hold 44,000 tokens on average, and the published TTFT shows that some waited for memory.
"""
BLOCK = 16
DECODE_MS = 0.85
"""Milliseconds that a sequence of this load adds to a decode step: `penstock plan QwQ-32B --on
a10-24gb:4 --engine vllm -tp 2 -pp 2 --concurrency 2,4`, difference of TPOT.
"""
POLICIES = {"round robin": "round-robin", "fewest requests": "least-load", "default": "default"}
"""Policies of `penstock route replay`, by title. The source's plain route was Envoy Gateway's
default: the replica with fewer requests of two random ones, which is between the first two.
"""
PROSE = (
    "Published: source 000 (docs/sources.md), three replicas of QwQ-32B with vLLM 0.7.2, TP2 x",
    "PP2 each, one run of each route. Its summary calls total throughput output throughput.",
    "Here: three processes of `penstock sim`, `penstock gateway` and `penstock bench serve`, fresh",
    "for each run; policies alternate, each repeat has its own seed. Means, with the range.",
    "",
    "The engines are modelled. Their scheduler is Penstock's, not vLLM's, and a step covers the",
    "whole pipeline. A decode step of ten sequences takes the published median ITL of the plain",
    "route; the time of a prompt token follows from its mean ITL minus the median. A replica's KV",
    f"pool, {KV_TOKENS:,} tokens, is an assumption: the source names no device. With it, requests",
    "wait for memory now and then. TTFT and every difference between two policies are predictions.",
    "Prefix caching is off, as it was by default in vLLM 0.7.2.",
    "The source's plain route is Envoy Gateway's default: the one with fewer requests of two",
    "random replicas, which is between round robin and fewest requests of all three.",
)
ROWS = {
    "duration, s": ("duration", 0),
    "output tok/s": ("output_throughput", 1),
    "total tok/s": ("total_token_throughput", 1),
    "TTFT mean, ms": ("mean_ttft_ms", 0),
    "TTFT median": ("median_ttft_ms", 0),
    "TTFT P99": ("p99_ttft_ms", 0),
    "TPOT mean, ms": ("mean_tpot_ms", 1),
    "TPOT median": ("median_tpot_ms", 1),
    "TPOT P99": ("p99_tpot_ms", 1),
    "ITL mean, ms": ("mean_itl_ms", 1),
    "unevenness of KV use": ("unevenness", 3),
    "KV use, mean": ("kv_use", 3),
    "preemptions": ("preemptions", 0),
}
"""Rows of the table: key of the result, decimals. Percentiles of ITL are left out: compressed gaps
of 5 ms are as short as the delays of a busy machine.
"""
SAMPLE_S = 0.5
TTFT = "vllm:time_to_first_token_seconds"


def prompt_ms(published: Mapping[str, float]) -> float:
    """Milliseconds of work for a prompt token, from the ITL of the other sequences: they wait for
    each prompt once, so their mean exceeds their median by its work.
    """
    extra = published["mean_itl_ms"] - published["median_itl_ms"]
    waiting = published["total_input_tokens"] * (CLIENTS / REPLICAS - 1)
    return extra * (published["total_output_tokens"] - REQUESTS) / waiting


def engine(compression: float) -> dict[str, object]:
    """Profile of a replica whose step times are the source's, divided by `compression`."""
    published = PUBLISHED["plain"]
    base = published["median_itl_ms"] - DECODE_MS * CLIENTS / REPLICAS
    us = 1e3 / compression
    return {
        "max_model_len": 16384,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "block_size": BLOCK,
        "num_blocks": KV_TOKENS // BLOCK,
        "prefix_caching": False,
        "timing": {
            "base_us": base * us,
            "decode_us": [[1, DECODE_MS * us]],
            "prompt_us_per_token": prompt_ms(published) * us,
            "decode_us_per_context_ktoken": 0,
            "prompt_us_per_context_ktoken": 0,
        },
    }


def in_modelled_time(result: Mapping[str, Any], compression: float) -> dict[str, Any]:
    """The scalars of a result, with times and rates as they are without compression."""

    def restored(key: str, value: float) -> float:
        if key.endswith("_ms") or key == "duration":
            return value * compression
        return value / compression if key.endswith(("throughput", "_per_s")) else value

    return {
        key: restored(key, value)
        for key, value in result.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class Bench:
    """Runs of the load. `commands` has one command line for each role."""

    def __init__(self, compression: float) -> None:
        self._compression = compression
        self.commands: dict[str, str] = {}

    def run(self, title: str, seed: int) -> dict[str, Any]:
        """Run the load once on fresh replicas and a fresh gateway."""
        with TemporaryDirectory(prefix="routing-") as name, ExitStack() as servers:
            directory = Path(name)
            profile = directory / "engine.json"
            profile.write_text(json.dumps(engine(self._compression)))
            words = ["sim", "--profile", str(profile), "--seed", str(seed)]
            replicas = [
                servers.enter_context(Server(words, (), directory / f"{at}.log"))
                for at in range(REPLICAS)
            ]
            words = ["gateway"]
            for replica in replicas:
                words += ["--backend", replica.url]
            if profile := policy(POLICIES[title]).spec["profile"]:
                routing = directory / "routing.json"
                routing.write_text(json.dumps(profile))
                words += ["--profile", str(routing)]
            gateway = servers.enter_context(Server(words, (), directory / "gateway.log"))
            self._note(f"gateway, {title}", gateway.words)
            self._note("replica", replicas[0].words)
            samples = self._load(gateway, replicas, directory, seed)
            result = json.loads((directory / "run.json").read_text())
            if result["failed"]:
                raise SystemExit(f"{title}: {result['failed']} requests failed")
            pages = [replica.counters() for replica in replicas]
        return self._summary(title, seed, result, samples, pages)

    def _load(
        self, gateway: Server, replicas: Sequence[Server], directory: Path, seed: int
    ) -> list[list[float]]:
        """Play the load. Returns a row for each sample: modelled seconds since the start, and the
        KV use of each replica.
        """
        words = [*HERE, "bench", "serve", "--backend", "openai", "--base-url", gateway.url]
        words += ["--prompt-ids", "--vocab-size", "49152", *LOAD, "--seed", str(seed)]
        words += ["--disable-tqdm", "--save-result", "--result-dir", str(directory)]
        words += ["--result-filename", "run.json"]
        self._note("load", words)
        begin, samples = time.monotonic(), []
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as client:
            while client.poll() is None:
                at = (time.monotonic() - begin) * self._compression
                used = [one.counters()["vllm:kv_cache_usage_perc"] for one in replicas]
                samples.append([at, *used])
                time.sleep(SAMPLE_S)
        if client.returncode:
            raise SystemExit(f"the load ended with status {client.returncode}")
        return samples

    def _summary(
        self,
        title: str,
        seed: int,
        result: Mapping[str, Any],
        samples: list[list[float]],
        pages: Sequence[Mapping[str, float]],
    ) -> dict[str, Any]:
        def total(name: str) -> float:
            return sum(page[name] for page in pages)

        # The client's two probes are in the sum, too: some milliseconds of modelled time.
        served = 1e3 * total(f"{TTFT}_sum") / REQUESTS
        used = [row[1:] for row in samples if any(row[1:])]
        return {
            "policy": title,
            "seed": seed,
            **in_modelled_time(result, self._compression),
            "unevenness": unevenness(used),
            "kv_use": statistics.fmean(map(statistics.fmean, used)),
            "preemptions": total("vllm:num_preemptions_total"),
            "by_replica": [int(page[f"{TTFT}_count"]) for page in pages],
            "outside_replicas_ms": result["mean_ttft_ms"] - served,
            "slipped_s": total("penstock:sim_slipped_seconds_total"),
            "load_average": os.getloadavg()[0],
            "samples": samples,
        }

    def _note(self, role: str, words: Sequence[str]) -> None:
        self.commands.setdefault(role, facts.shown([*words]))


def spread(values: Sequence[float], decimals: int) -> str:
    """The mean of some repeats, with their range if there are several."""
    mean = f"{statistics.fmean(values):,.{decimals}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):,.{decimals}f} to {max(values):,.{decimals}f})"


def values(runs: Sequence[Mapping[str, Any]], title: str, key: str) -> list[float]:
    return [run[key] for run in runs if run["policy"] == title]


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown table: the published results, and ours by policy."""
    rows = []
    for row, (key, decimals) in ROWS.items():
        published = [
            f"{one[key]:,.{decimals}f}" if key in one else "" for one in PUBLISHED.values()
        ]
        own = [spread(values(runs, title, key), decimals) for title in POLICIES]
        rows.append([row, *published, *own])
    return facts.table(
        ("", "published: plain", "aware", *(f"here: {title}" for title in POLICIES)), rows
    )


def gain(of: Sequence[float], beside: Sequence[float]) -> str:
    return f"{statistics.fmean(of) / statistics.fmean(beside) - 1:+.1%}"


def gains(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown table: the published change, and the default's beside each plain policy."""
    plain, aware = PUBLISHED["plain"], PUBLISHED["aware"]
    others = [title for title in POLICIES if title != "default"]
    rows = []
    for title, key in (
        ("mean TTFT", "mean_ttft_ms"),
        ("P99 TTFT", "p99_ttft_ms"),
        ("throughput", "total_token_throughput"),
        ("unevenness", "unevenness"),
    ):
        own = values(runs, "default", key)
        row = [title, gain([aware[key]], [plain[key]]) if key in plain else "not given"]
        row += [gain(own, values(runs, name, key)) for name in others]
        rows.append(row)
    columns = ("", "published", *(f"default beside {name}" for name in others))
    return facts.table(columns, rows)


def without_samples(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key != "samples"}


def chart(run: Mapping[str, Any]) -> Plot:
    """Chart of the KV use of each replica in one run."""
    key = run["policy"].replace(" ", "-")
    lines = tuple(
        Series(
            f"replica {at}",
            at,
            tuple(Point(row[0], 100 * row[at + 1]) for row in run["samples"][::4]),
        )
        for at in range(REPLICAS)
    )
    title = f"KV use of three replicas, {run['policy']}"
    across, up = Axis("modelled time", "s", log=False), Axis("KV use", "%", log=False, zero=True)
    return Plot(key, title, title, across, up, lines)


def lines(
    runs: Sequence[Mapping[str, Any]], known: Mapping[str, Any], bench: Bench, compression: float
) -> list[str]:
    outside = statistics.fmean(run["outside_replicas_ms"] for run in runs)
    loads = [run["load_average"] for run in runs]
    # A slip is the host's time, `duration` the model's.
    slips = [run["slipped_s"] * compression / (REPLICAS * run["duration"]) for run in runs]
    profile = json.dumps(engine(1))
    return [
        "# Routing of a published load",
        "",
        *facts.fact_lines(known),
        "",
        *PROSE,
        "",
        *table(runs),
        "",
        *gains(runs),
        "",
        f"Modelled times are {compression:g} times the measured ones. A first token takes",
        f"{outside:.1f} ms outside the replicas (gateway, sockets, client): that is",
        f"{outside * compression:.0f} ms of modelled time. The slip of a run is the share of its",
        "time that replicas stood still, as the machine was busy. Load average of the machine:",
        f"{min(loads):.1f} to {max(loads):.1f}; these processes have nice {os.nice(0)}.",
        "Charts start with the client's process.",
        "",
        *facts.table(
            ("run", "seed", "TTFT mean, ms", "requests by replica, two probes among them", "slip"),
            [
                (
                    run["policy"],
                    run["seed"],
                    f"{run['mean_ttft_ms']:,.0f}",
                    ", ".join(map(str, run["by_replica"])),
                    f"{slip:.1%}",
                )
                for run, slip in zip(runs, slips, strict=True)
            ],
        ),
        "",
        "## Commands",
        "",
        *(f"* {role}: `{words}`" for role, words in bench.commands.items()),
        f"* profile of a replica, not compressed: `{profile}`",
    ]


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--compression", type=float, default=20.0, help="default: %(default)s")
    given = parser.parse_args()
    bench, runs = Bench(given.compression), []
    known = facts.gather(given.peers, [], sys.argv)
    for repeat in range(given.repeats):
        for title in list(POLICIES)[:: -1 if repeat % 2 else 1]:
            runs.append(bench.run(title, seed=1 + repeat))
            print(json.dumps(without_samples(runs[-1])), flush=True)
    stem = facts.stem("routing-published", given.results)
    pictures = drawing.write(drawing.draw([chart(run) for run in runs[: len(POLICIES)]]), stem)
    text = lines(runs, known, bench, given.compression)
    for key, name in pictures.items():
        text += ["", f"![KV use of three replicas, {key}]({name})"]
    kept = [without_samples(run) for run in runs]
    facts.write(stem, text, {**known, "commands": bench.commands, "runs": kept})


if __name__ == "__main__":
    main()
