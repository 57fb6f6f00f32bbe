"""Cost of a gateway on one core: CPU for a request, added latency, open streams, memory.

    benchmarks/peers/install_gateways.sh
    python benchmarks/gateway_cost.py [--repeats 3] [--peers ~/.cache/peers]

CPU of a request covers the time between the first request and the last answer. The gateway's idle
CPU (health checks, scrapes) is measured before the load, reported separately, and subtracted for
the time in which the load generator starts and ends.

CPU 0 belongs to the gateway. Two modelled replicas (`penstock sim`) and the load generator
(`penstock bench serve`) share CPU 1, which limits the number of requests. Requests per second and
core are therefore computed for a core dedicated to the gateway: 1 / CPU seconds of a request. Added
latency is measured with one replica and at a rate that leaves CPU 1 mostly idle: otherwise a second
replica or a late generator would be attributed to the gateway.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support import clients, facts, gateways
from support.servers import PATIENCE_S, simulation

from penstock.hub import locate
from penstock_lab.bench.compare.processes import (
    ProcessTree,
    machine_cpu_seconds,
    uninterrupted,
    wait_until_quiet,
)
from penstock_lab.bench.compare.server_under_test import answers, first_line_with_digit, free_port
from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series

GATEWAY_CPU, REST_CPU = 0, 1
RUN_S = 300.0
IDLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A load, the duration of each engine step, and the number of replicas."""

    title: str
    load: clients.Load
    step_ms: float = 1.0
    replicas: int = 2


WORKLOADS = {
    "short": Workload("200 tokens, 64 at once", clients.Load(200, 8, 6000, 1, concurrency=64)),
    "light": Workload(
        "200 tokens, 100 requests/s, one replica",
        clients.Load(200, 8, 2000, 2, rate=100),
        replicas=1,
    ),
    "steady": Workload(
        "200 tokens, 400 requests/s, one replica",
        clients.Load(200, 8, 4000, 2, rate=400),
        replicas=1,
    ),
    "4k": Workload("4,000 tokens, 16 at once", clients.Load(4000, 8, 400, 3, concurrency=16)),
    "100k": Workload("100,000 tokens, 2 at once", clients.Load(100_000, 8, 80, 4, concurrency=2)),
    "streams": Workload(
        "5,000 open streams, a token each second",
        clients.Load(16, 12, 5000, 5, concurrency=5000),
        step_ms=1000.0,
    ),
}


def profile(step_ms: float) -> Mapping[str, object]:
    """The profile of a simulated engine whose steps always take `step_ms` milliseconds."""
    return {
        "max_num_seqs": 8192,
        "max_num_batched_tokens": 1 << 20,
        "max_queue": 65536,
        "num_blocks": 1 << 20,
        "max_model_len": 131_072,
        "prefix_caching": False,
        "timing": {
            "base_us": step_ms * 1000,
            "decode_us": [],
            "prompt_us_per_token": 0,
            "decode_us_per_context_ktoken": 0,
            "prompt_us_per_context_ktoken": 0,
            "jitter": 0,
        },
    }


@dataclass(frozen=True, slots=True)
class Run:
    """One load through one gateway. Times are in milliseconds; `pss_mib` is the gateway's memory at
    the end.
    """

    gateway: str
    workload: str
    repeat: int
    completed: int
    failed: int
    requests_per_s: float
    cpu_ms: float
    idle_cpu_ms_per_s: float
    """CPU milliseconds that the gateway uses in each second without requests."""
    median_ttft_ms: float
    p99_ttft_ms: float
    p99_itl_ms: float
    p99_late_ms: float
    """P99 of the time by which the load generator sent requests late, in an open loop."""
    pss_mib: float
    foreign: float


def cpu_seconds(tree: ProcessTree | None) -> float:
    """CPU seconds of all threads of a process tree, from the kernel's counts in nanoseconds.
    `ProcessTree.cpu_seconds` has only ticks of 10 ms.
    """
    nanoseconds = 0
    for pid in tree.pids() if tree else ():
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                nanoseconds += int(thread.read_text().split()[0])
    return nanoseconds / 1e9


def idle_cpu(tree: ProcessTree | None) -> float:
    """CPU seconds that the gateway uses in each second without requests."""
    if tree is None:
        return 0.0
    begun, before = time.monotonic(), cpu_seconds(tree)
    time.sleep(IDLE_S)
    return (cpu_seconds(tree) - before) / (time.monotonic() - begun)


class Bench:
    def __init__(self, parsed: argparse.Namespace) -> None:
        self._gguf = str(locate(parsed.model).path.resolve())
        self._peers = parsed.peers.expanduser()
        self.commands: dict[str, str] = {}

    @contextmanager
    def _replicas(self, work: Workload) -> Iterator[list[str]]:
        with ExitStack() as stack:
            urls = []
            for _ in range(work.replicas):
                name = stack.enter_context(TemporaryDirectory(prefix="gateways-"))
                engine = simulation(profile(work.step_ms), self._gguf, [REST_CPU], Path(name))
                urls.append(stack.enter_context(engine).url)
            yield urls

    @contextmanager
    def _gateway(self, name: str, urls: Sequence[str]) -> Iterator[tuple[str, ProcessTree]]:
        with TemporaryDirectory(prefix="gateways-") as directory:
            port, log = free_port(), Path(directory) / "gateway.log"
            command = gateways.command(name, port, urls, self._peers, Path(directory))
            self.commands.setdefault(name, facts.shown(command.words))
            with uninterrupted():
                tree = ProcessTree(command.words, command.environment, log, [GATEWAY_CPU])
            try:
                url = f"http://127.0.0.1:{port}"
                deadline = time.monotonic() + PATIENCE_S
                while not (answers(url + gateways.READY[name]) and answers(url + "/v1/models")):
                    if not tree.alive() or time.monotonic() > deadline:
                        raise RuntimeError(f"{name} is not ready:\n{log.read_text()}")
                    time.sleep(0.05)
                yield url, tree
            finally:
                tree.end()

    def measure(self, gateway: str, workload: str, repeat: int) -> Run:
        with self._replicas(WORKLOADS[workload]) as urls:
            if gateway == "direct":
                return self._load(gateway, workload, repeat, urls[0], None)
            with self._gateway(gateway, urls) as (url, tree):
                return self._load(gateway, workload, repeat, url, tree)

    def _load(
        self, gateway: str, workload: str, repeat: int, url: str, tree: ProcessTree | None
    ) -> Run:
        wait_until_quiet(30.0)
        idle = idle_cpu(tree)
        load = WORKLOADS[workload].load
        with TemporaryDirectory(prefix="gateways-") as name:
            results, log = Path(name), Path(name) / "client.log"
            place = clients.Place(url, self._gguf, self._peers, self._peers)
            # Name the model, because sglang-router does not list the models of its replicas.
            words = clients.command("penstock", load, place, results)
            words += ["--model", clients.MODEL]
            self.commands.setdefault("load", facts.shown(words))
            begun, machine = time.monotonic(), machine_cpu_seconds()
            before = cpu_seconds(tree)
            with uninterrupted():
                client = ProcessTree(words, {}, log, [REST_CPU])
            pss = 0
            try:
                while client.alive() and time.monotonic() - begun < RUN_S:
                    time.sleep(0.25)
                    pss = max(pss, tree.pss_mb() if tree and workload == "streams" else 0)
            finally:
                client.end()
            used, wall = cpu_seconds(tree) - before, time.monotonic() - begun
            pss = max(pss, tree.pss_mb() if tree else 0)
            try:
                result = clients.read("penstock", results)
            except FileNotFoundError as error:
                raise RuntimeError(f"no result:\n{log.read_text(errors='replace')}") from error
        done = result["completed"]
        used -= idle * max(0.0, wall - result["duration"])
        return Run(
            gateway=gateway,
            workload=workload,
            repeat=repeat,
            completed=done,
            failed=load.requests - done,
            requests_per_s=done / result["duration"],
            cpu_ms=1000 * used / done if done else math.nan,
            idle_cpu_ms_per_s=1000 * idle,
            median_ttft_ms=result["median_ttft_ms"],
            p99_ttft_ms=result["p99_ttft_ms"],
            p99_itl_ms=result["p99_itl_ms"],
            p99_late_ms=result["penstock"]["send_lateness_ms"]["p99"],
            pss_mib=pss,
            foreign=(machine_cpu_seconds() - machine) / wall,
        )


COLUMNS = (
    "gateway",
    "requests/s of a core",
    "of smg's",
    "CPU ms a request",
    "idle CPU ms/s",
    "came/s",
    "TTFT P50 ms",
    "added",
    "TTFT P99 ms",
    "added",
    "ITL P99 ms",
    "sent late P99 ms",
    "PSS MiB",
    "failed",
)
PROSE = (
    "CPU 0 is the gateway's; two modelled replicas, where nothing else is said, and the load",
    "generator share CPU 1, which limits how many requests come. Requests per second of a core:",
    "1 / CPU seconds of a request; of Envoy and the Go picker together. CPU between the first",
    "request and the last answer, with the checks and scrapes of that time; idle: no requests.",
    "Added: less what the same load takes at one replica without a gateway. Answers have 8 tokens,",
    "streamed (12 with 5,000 streams). Medians of the repeats, all gateways in turn in each.",
    "Envoy and nginx do not look at bodies and know no prefixes: they are the floor of a proxy.",
)


def row(runs: Sequence[Run], direct: Sequence[Run], smg: float) -> list[str]:
    def mid(of: Sequence[Run], key: str) -> float:
        return facts.middle([asdict(run) for run in of], key)

    cpu = mid(runs, "cpu_ms")
    rate = 1000 / cpu if cpu > 0 else math.nan
    added = [mid(runs, key) - mid(direct, key) for key in ("median_ttft_ms", "p99_ttft_ms")]
    through = runs[0].gateway != "direct"
    return [
        gateways.TITLES[runs[0].gateway],
        f"{rate:,.0f}" if through else "",
        f"{rate / smg:.2f}" if through and smg else "",
        f"{cpu:.3f}" if through else "",
        f"{mid(runs, 'idle_cpu_ms_per_s'):.1f}" if through else "",
        f"{mid(runs, 'requests_per_s'):,.0f}",
        f"{mid(runs, 'median_ttft_ms'):.2f}",
        f"{added[0]:+.2f}" if through else "",
        f"{mid(runs, 'p99_ttft_ms'):.2f}",
        f"{added[1]:+.2f}" if through else "",
        f"{mid(runs, 'p99_itl_ms'):.2f}",
        f"{mid(runs, 'p99_late_ms'):.2f}",
        f"{mid(runs, 'pss_mib'):.0f}" if through else "",
        str(max(run.failed for run in runs)),
    ]


def lines(runs: Sequence[Run], known: Mapping[str, Any], commands: Mapping[str, str]) -> list[str]:
    out = ["# Cost of a gateway", "", *facts.fact_lines(known), "", *PROSE]
    for key, work in WORKLOADS.items():
        chosen = {
            name: [run for run in runs if (run.workload, run.gateway) == (key, name)]
            for name in gateways.TITLES
        }
        chosen = {name: some for name, some in chosen.items() if some}
        if not chosen:
            continue
        smg = facts.middle([asdict(run) for run in chosen.get("smg", [])], "cpu_ms")
        rate = 1000 / smg if smg > 0 else 0.0
        rows = [row(some, chosen.get("direct", []), rate) for some in chosen.values()]
        out += ["", f"## {work.title}", "", *facts.table(COLUMNS, rows)]
    shown = [f"* {name}: `{words}`" for name, words in commands.items()]
    return [*out, "", "## Commands", "", *shown]


def chart(runs: Sequence[Run]) -> list[Plot]:
    """Chart with the CPU time of a request by prompt length, from the closed loops with 8 output
    tokens.
    """
    lengths = {
        key: WORKLOADS[key].load.input_len
        for key in ("short", "4k", "100k")
        if any(run.workload == key for run in runs)
    }

    def points(name: str) -> tuple[Point, ...]:
        found = {
            key: facts.middle(
                [asdict(run) for run in runs if (run.gateway, run.workload) == (name, key)],
                "cpu_ms",
            )
            for key in lengths
        }
        return tuple(Point(lengths[key], cpu) for key, cpu in found.items() if cpu > 0)

    drawn = [name for name in gateways.NAMES if points(name)]
    if not drawn:
        return []
    series = [Series(gateways.TITLES[name], at, points(name)) for at, name in enumerate(drawn)]
    title = "CPU of a request"
    across = Axis("Prompt", "tokens", log=True, ticks=tuple(map(float, lengths.values())))
    up = Axis("CPU of the gateway", "ms", log=True)
    return [Plot("cpu", title, title, across, up, tuple(series))]


def main(argv: Sequence[str]) -> int:
    parser = facts.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--gateways", nargs="+", help="default: those that are installed")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parsed = parser.parse_args(argv[1:])
    bench = Bench(parsed)
    parsed.gateways = parsed.gateways or gateways.installed(parsed.peers.expanduser())
    names = ["direct", *parsed.gateways]
    runs: list[Run] = []
    for repeat in range(parsed.repeats):
        turned = names[repeat % len(names) :] + names[: repeat % len(names)]
        for workload in parsed.workloads:
            for name in turned:
                runs.append(bench.measure(name, workload, repeat))
                last = runs[-1]
                print(
                    f"{repeat + 1}/{parsed.repeats} {workload} {name}: {last.cpu_ms:.3f} ms CPU, "
                    f"{last.requests_per_s:.0f}/s, TTFT {last.median_ttft_ms:.2f} / "
                    f"{last.p99_ttft_ms:.2f} ms, {last.failed} failed",
                    flush=True,
                )
    known = facts.gather(parsed.peers, [], argv)
    for name in parsed.gateways:
        if name != "penstock":
            version = gateways.version(name, parsed.peers.expanduser())
            known["versions"][name] = first_line_with_digit(list(version))
    data = {**known, "commands": bench.commands, "runs": [asdict(run) for run in runs]}
    path = facts.stem("gateway-cost", parsed.results)
    facts.write(path, lines(runs, known, bench.commands), data)
    print("wrote", *drawing.write(drawing.draw(chart(runs)), path).values())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
