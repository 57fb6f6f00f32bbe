"""Routing in front of real engines: replicas of the default model behind each gateway in turn.

    benchmarks/peers/install_gateways.sh
    python benchmarks/routing_real.py [--repeats 2] [--replicas 3 2] [--peers ~/.cache/peers]

Each tenant has a long system prompt; all of them together do not fit into the KV pool of one
replica. Replicas are restarted for each run. All processes share the machine's CPUs, so only ratios
can be compared, not absolute times. With more replicas than CPUs, replicas slow each other down; no
routing policy models that.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import facts, gateways
from support.servers import HERE, PATIENCE_S, Server

from penstock_lab.bench.compare.processes import ProcessTree, uninterrupted, wait_until_quiet
from penstock_lab.bench.compare.server_under_test import answers, first_line_with_digit, free_port
from penstock_lab.bench.stats import percentile

CPUS = os.sched_getaffinity(0)
TENANTS = 14
SYSTEM_WORDS, QUESTION_WORDS, ANSWER_TOKENS = 500, 30, 24
POOL_MIB = 432
"""KV memory of all replicas together in MiB, which is about 19,200 tokens."""
REQUESTS, RATE = 240, 4.0
COLD_S = 12.0
"""Seconds at the start of a load in which most tenants' prompts arrive for the first time, so that
no cache has them.
"""
NAME = "bench"
"""Name of the model, which the load generator gets because not every gateway lists the models of
its replicas.
"""
SEED = 11
PROFILES: Mapping[str, str | None] = {
    "penstock": None,
    "round-robin": "scorers: []\npicker: round-robin\n",
    "least-load": "scorers: [{name: queue}, {name: running}]\n",
}
TITLES = {
    "round-robin": "round robin",
    "least-load": "least load",
    "smg": gateways.TITLES["smg"],
    "sglang-router": gateways.TITLES["sglang-router"],
    "llm-d": gateways.TITLES["llm-d"],
    "penstock": "penstock gateway, default",
}
COLUMNS = (
    "routing",
    "TTFT mean ms",
    "of round robin's",
    "P50",
    "P99",
    "of round robin's",
    "TPOT mean ms",
    "P99",
    "warm TTFT P99",
    "warm TPOT P99",
    "cached tokens",
    "requests by replica",
    "failed",
)
PROSE = (
    f"Replicas are `penstock serve smollm2` with one thread each and {POOL_MIB} MiB of KV in all.",
    f"{TENANTS} tenants with a system prompt of {SYSTEM_WORDS} words, questions of",
    f"{QUESTION_WORDS} words, answers of {ANSWER_TOKENS} tokens; {REQUESTS} requests at",
    f"{RATE:g}/s, Poisson, the same in each run. Medians of the repeats, all policies in turn in",
    f"each. Warm: of the requests after the first {COLD_S:g} s, when most prefixes are there.",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One load through one gateway. Times are in milliseconds."""

    replicas: int
    routing: str
    repeat: int
    failed: int
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    warm_p99_ttft_ms: float
    warm_p99_tpot_ms: float
    cached: float
    by_replica: tuple[int, ...]


def prompts() -> Iterator[str]:
    """The prompts of the load: the words of a tenant, followed by the words of a question."""
    rng = random.Random(SEED)
    words = [a + b for a in ("ba", "ke", "lo", "mi", "nu", "so") for b in ("n", "r", "st", "x")]
    tenants = [" ".join(rng.choices(words, k=SYSTEM_WORDS)) for _ in range(TENANTS)]
    for _ in range(REQUESTS):
        question = " ".join(rng.choices(words, k=QUESTION_WORDS))
        yield f"{rng.choice(tenants)} {question}"


def warm(result: Mapping[str, Any]) -> dict[str, float]:
    """P99 of TTFT and TPOT in milliseconds, without the requests of the first COLD_S seconds."""
    starts = result["start_times"]
    late = [index for index, start in enumerate(starts) if start - min(starts) >= COLD_S]
    ttfts = [result["ttfts"][index] for index in late]
    tpots = [statistics.fmean(gaps) for index in late if (gaps := result["itls"][index])]
    return {
        "warm_p99_ttft_ms": 1e3 * percentile(sorted(ttfts), 99.0),
        "warm_p99_tpot_ms": 1e3 * percentile(sorted(tpots), 99.0),
    }


class Bench:
    def __init__(self, parsed: Any) -> None:
        self._model, self._peers = parsed.model, parsed.peers.expanduser()
        self.commands: dict[str, str] = {}

    @contextmanager
    def _replicas(self, count: int, directory: Path) -> Iterator[list[Server]]:
        words = ["serve", self._model, "--threads", "1", "--max-queue-wait", "0"]
        words += ["--kv-cache-memory-bytes", f"{POOL_MIB // count}MiB"]
        words += ["--served-model-name", NAME]
        with ExitStack() as stack:
            logs = (directory / f"replica-{number}.log" for number in range(count))
            yield [stack.enter_context(Server(words, (), log)) for log in logs]

    @contextmanager
    def _gateway(self, name: str, urls: Sequence[str], directory: Path) -> Iterator[str]:
        port, log = free_port(), directory / "gateway.log"
        kind = name if name in gateways.NAMES else "penstock"
        command = gateways.command(kind, port, urls, self._peers, directory)
        words = list(command.words)
        if profile := PROFILES.get(name):
            file = directory / "profile.yaml"
            file.write_text(profile)
            words += ["--profile", str(file)]
        self.commands.setdefault(name, facts.shown(words))
        with uninterrupted():
            tree = ProcessTree(words, command.environment, log, CPUS)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE_S
        try:
            while not (answers(url + gateways.READY[kind]) and answers(url + "/v1/models")):
                if not tree.alive() or time.monotonic() > deadline:
                    raise RuntimeError(f"{name} is not ready:\n{log.read_text()}")
                time.sleep(0.05)
            yield url
        finally:
            tree.end()

    def measure(self, count: int, name: str, repeat: int) -> Run:
        with TemporaryDirectory(prefix="routing-") as directory, ExitStack() as stack:
            place = Path(directory)
            replicas = stack.enter_context(self._replicas(count, place))
            urls = [replica.url for replica in replicas]
            url = stack.enter_context(self._gateway(name, urls, place))
            wait_until_quiet(30.0)
            result = self._load(url, place)
            pages = [replica.counters() for replica in replicas]
        asked = sum(page["vllm:prefix_cache_queries_total"] for page in pages)
        hits = sum(page["vllm:prefix_cache_hits_total"] for page in pages)
        return Run(
            replicas=count,
            routing=name,
            repeat=repeat,
            failed=REQUESTS - result["completed"],
            mean_ttft_ms=result["mean_ttft_ms"],
            median_ttft_ms=result["median_ttft_ms"],
            p99_ttft_ms=result["p99_ttft_ms"],
            mean_tpot_ms=result["mean_tpot_ms"],
            p99_tpot_ms=result["p99_tpot_ms"],
            **warm(result),
            cached=hits / asked,
            by_replica=tuple(int(page["vllm:request_success_total"]) for page in pages),
        )

    def _load(self, url: str, directory: Path) -> dict[str, Any]:
        dataset = directory / "prompts.jsonl"
        dataset.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts()))
        words = [*HERE, *f"bench serve --backend openai --base-url {url}".split()]
        words += ["--model", NAME, "--tokenizer", self._model]
        words += ["--ignore-eos", "--disable-shuffle"]
        words += ["--dataset-name", "custom", "--dataset-path", str(dataset), "--disable-tqdm"]
        words += ["--custom-output-len", str(ANSWER_TOKENS), "--num-prompts", str(REQUESTS)]
        words += ["--request-rate", f"{RATE:g}", "--seed", str(SEED)]
        words += ["--save-result", "--save-detailed"]
        words += ["--result-dir", str(directory), "--result-filename", "run.json"]
        words += ["--percentile-metrics", "ttft,tpot", "--metric-percentiles", "50,99"]
        self.commands.setdefault("load", facts.shown(words))
        log = directory / "client.log"
        with uninterrupted():
            client = ProcessTree(words, {}, log, CPUS)
        try:
            while client.alive():
                time.sleep(0.1)
        finally:
            client.end()
        try:
            return dict(json.loads((directory / "run.json").read_text()))
        except FileNotFoundError as error:
            raise RuntimeError(f"no result:\n{log.read_text(errors='replace')}") from error


def table(runs: Sequence[Run]) -> list[str]:
    """Markdown table with a row for each gateway, over `runs` with the same number of replicas."""

    def mid(name: str, key: str) -> float:
        return facts.middle([asdict(run) for run in runs if run.routing == name], key)

    def row(name: str) -> list[str]:
        own = [run for run in runs if run.routing == name]

        def compared(key: str) -> str:
            return f"{mid(name, key) / mid('round-robin', key) - 1:+.0%}"

        return [
            TITLES[name],
            f"{mid(name, 'mean_ttft_ms'):,.0f}",
            compared("mean_ttft_ms"),
            f"{mid(name, 'median_ttft_ms'):,.0f}",
            f"{mid(name, 'p99_ttft_ms'):,.0f}",
            compared("p99_ttft_ms"),
            f"{mid(name, 'mean_tpot_ms'):.1f}",
            f"{mid(name, 'p99_tpot_ms'):.1f}",
            f"{mid(name, 'warm_p99_ttft_ms'):,.0f}",
            f"{mid(name, 'warm_p99_tpot_ms'):.1f}",
            f"{mid(name, 'cached'):.0%}",
            " / ".join(map(str, sorted(own[0].by_replica))),
            str(max(run.failed for run in own)),
        ]

    names = [name for name in TITLES if any(run.routing == name for run in runs)]
    return facts.table(COLUMNS, map(row, names))


def lines(runs: Sequence[Run], known: Mapping[str, Any], commands: Mapping[str, str]) -> list[str]:
    found = ["# Routing before real engines", "", *facts.fact_lines(known), "", *PROSE]
    for count in dict.fromkeys(run.replicas for run in runs):
        own = [run for run in runs if run.replicas == count]
        found += ["", f"## {count} replicas on {len(CPUS)} processors", "", *table(own)]
    shown = [f"* {name}: `{words}`" for name, words in commands.items()]
    return [*found, "", "## Commands", "", *shown]


def main(argv: Sequence[str]) -> int:
    parser = facts.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=2, help="default: %(default)s")
    parser.add_argument(
        "--replicas", nargs="+", type=int, default=[3, 2], help="fleets; default: %(default)s"
    )
    parser.add_argument(
        "--routings", nargs="+", choices=TITLES, help="default: those that are installed"
    )
    parsed = parser.parse_args(argv[1:])
    there = gateways.installed(parsed.peers.expanduser())
    absent = set(gateways.NAMES) - set(there)
    parsed.routings = parsed.routings or [name for name in TITLES if name not in absent]
    bench, runs = Bench(parsed), []
    for count, repeat in itertools.product(parsed.replicas, range(parsed.repeats)):
        turn = repeat % len(parsed.routings)
        for name in parsed.routings[turn:] + parsed.routings[:turn]:
            runs.append(bench.measure(count, name, repeat))
            last = runs[-1]
            print(
                f"{repeat + 1}/{parsed.repeats} {name}: TTFT {last.mean_ttft_ms:.0f} / "
                f"{last.p99_ttft_ms:.0f} ms, TPOT P99 {last.p99_tpot_ms:.0f} ms, "
                f"cached {last.cached:.0%}, {last.by_replica}",
                flush=True,
            )
    known = facts.gather(parsed.peers, [], argv)
    for name in ("smg", "sglang-router", "llm-d"):
        if name in parsed.routings:
            version = gateways.version(name, parsed.peers.expanduser())
            known["versions"][name] = first_line_with_digit(list(version))
    data = {**known, "commands": bench.commands, "runs": [asdict(run) for run in runs]}
    path = facts.stem("routing-real", parsed.results)
    facts.write(path, lines(runs, known, bench.commands), data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
