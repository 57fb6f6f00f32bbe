"""Limits of benchmark clients on one core, against an engine with known token times.

    python benchmarks/client_speed.py [--rates 5000 20000 50000 100000] [--repeats 3]
        [--peers ~/.cache/peers]

`penstock sim` on CPU 0 sends a token to every open stream each 5 ms; the client runs on CPU 1.
Requests arrive at random (open loop), at a rate that gives the requested events per second. The
true values are known: each gap is one step, and the first token is sent at the end of the second
step that ends after the arrival, 5 to 10 ms later, uniformly distributed. A client with different
numbers has measured itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support import clients, facts, watching
from support.running import CLIENT_CPU, ENGINE_CPU, Finished, Lab

from penstock.hub import locate
from penstock_lab.bench.report import drawing
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series

STEP_MS = 5.0
ANSWER = 200
"""Tokens in an answer: at 5 ms for each, a stream lasts one second."""
ARRIVALS_S = 4.0
PATIENCE_S = 180.0
KEEPS_UP = 0.97
GIVES_UP = 0.5
"""If a client receives less than this share of the events that are due, it is not tested at higher
rates.
"""
TRUTH = {
    "median_itl_ms": STEP_MS,
    "p99_itl_ms": STEP_MS,
    "median_ttft_ms": 1.5 * STEP_MS,
    "p99_ttft_ms": 1.99 * STEP_MS,
}
PROFILE: Mapping[str, object] = {
    "max_num_seqs": 4096,
    "max_num_batched_tokens": 65536,
    "max_queue": 65536,
    "num_blocks": 65536,
    "prefix_caching": False,
    "timing": {
        "base_us": STEP_MS * 1000,
        "decode_us": [],
        "prompt_us_per_token": 0,
        "decode_us_per_context_ktoken": 0,
        "prompt_us_per_context_ktoken": 0,
        "jitter": 0,
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one client at one rate. `received` is events per second over the client's
    own duration.
    """

    client: str
    rate: int
    repeat: int
    received: float
    due: float
    """Events per second over the same time, if the client added no delay."""
    share: float
    """Share of one core (0 to 1) that the client used while events flowed."""
    cpu_per_million: float
    """CPU seconds of the client for each million events, while events flowed."""
    whole_cpu: float
    """CPU seconds of the client's process in total, including start-up."""
    engine_share: float
    slipped_s: float
    """How late the simulated engine itself was, in seconds."""
    foreign: float
    failed: int
    statistics: Mapping[str, float]

    @property
    def kept(self) -> float:
        return self.received / self.due


def load_of(rate: int, seed: int) -> clients.Load:
    """The load that gives `rate` events per second: `rate` times the step time streams are open at
    once, and each lasts ANSWER steps.
    """
    per_second = rate / ANSWER
    return clients.Load(16, ANSWER, round(per_second * ARRIVALS_S), seed, rate=per_second)


def due_rate(load: clients.Load) -> float:
    """Events per second from the first arrival to the last event, if the client adds no delay."""
    stream = (ANSWER + 0.5) * STEP_MS / 1000
    return load.requests * load.output_len / (load.requests / load.rate + stream)


def schedule(
    names: Sequence[str], rates: Sequence[int], repeats: int
) -> Iterator[tuple[int, int, str]]:
    """(repeat, rate, client) in the order of the runs: all clients at one rate in sequence, in a
    different order in each repeat.
    """
    for repeat in range(repeats):
        turned = [names[(index + repeat) % len(names)] for index in range(len(names))]
        for rate in sorted(rates):
            for name in turned:
                yield repeat, rate, name


class Bench:
    def __init__(self, parsed: argparse.Namespace) -> None:
        gguf = str(locate(parsed.model).path.resolve())
        self._lab = Lab(PROFILE, gguf, parsed.peers.expanduser(), PATIENCE_S)
        self.commands: dict[str, str] = {}

    def measure(self, client: str, rate: int, repeat: int) -> Run:
        load = load_of(rate, repeat + 1)

        def words(place: clients.Place, directory: Path) -> list[str]:
            command = clients.command(client, load, place, directory)
            self.commands.setdefault(client, facts.shown(command))
            return command

        return run_of(client, rate, repeat, load, self._lab.run(client, words))


def run_of(client: str, rate: int, repeat: int, load: clients.Load, finished: Finished) -> Run:
    result, watched = finished.result, finished.watched
    duration, events = result["duration"], result["total_output_tokens"]
    share = watching.client_share(watched.samples, duration)
    return Run(
        client=client,
        rate=rate,
        repeat=repeat,
        received=events / duration,
        due=due_rate(load),
        share=share,
        cpu_per_million=share * duration / events * 1e6 if events else 0.0,
        whole_cpu=watched.cpu_s,
        engine_share=watching.server_share(watched.samples),
        slipped_s=finished.slipped_s,
        foreign=watched.foreign_share,
        failed=load.requests - result["completed"],
        statistics={key: result[key] for key in TRUTH if key in result},
    )


def by_point(runs: Sequence[Run]) -> dict[tuple[int, str], list[Run]]:
    """Runs by (rate, client): rates ascending, clients in the order of `clients.NAMES`."""
    points: dict[tuple[int, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.rate, clients.NAMES.index(run.client))):
        points.setdefault((run.rate, run.client), []).append(run)
    return points


COLUMNS = (
    "events/s",
    "client",
    "received/s",
    "of what was due",
    "share of a core",
    "CPU s per million",
    *("ITL median", "ITL P99", "TTFT median", "TTFT P99"),
    "engine's core",
    "foreign",
)
PROSE = (
    f"The modelled engine sends each stream a token every {STEP_MS:g} ms, and requests arrive at",
    f"random. Truth: every gap {STEP_MS:g} ms; TTFT {STEP_MS:g} to {2 * STEP_MS:g} ms, median",
    f"{TRUTH['median_ttft_ms']:g}, P99 {TRUTH['p99_ttft_ms']:.2f}. In parentheses: what a client",
    "reports less the truth, in ms. What the engine itself is late is in the numbers of all",
    "clients; its share of its core tells how near its limit it is. `!`: received less than",
    f"{KEEPS_UP:.0%} of what was due by the end of the run; what is due starts with the first",
    "arrival, so it is less than the rate of a full load (and for aiperf, whose arrivals are not",
    "scaled to the rate, only about right). CPU is that of the client's whole process tree while",
    "events flow, start-up and final statistics left out. aiperf's ITL is its inter-chunk",
    f"latency. A client that received less than {GIVES_UP:.0%} at a rate is not asked for more.",
)


def row(rate: int, client: str, runs: Sequence[Run]) -> list[str]:
    def mid(key: str) -> float:
        return facts.middle([{**asdict(run), "kept": run.kept} for run in runs], key)

    statistics = [facts.middle([run.statistics for run in runs], key) for key in TRUTH]
    truths = zip(statistics, TRUTH.values(), strict=True)
    errors = [f"{value:.2f} ({value - truth:+.2f})" for value, truth in truths]
    slipped = max(run.slipped_s for run in runs)
    return [
        f"{rate:,}",
        clients.TITLES[client],
        f"{mid('received'):,.0f}",
        f"{mid('kept'):.1%}" + ("" if mid("kept") >= KEEPS_UP else " !"),
        f"{mid('share'):.0%}",
        f"{mid('cpu_per_million'):.1f}",
        *errors,
        f"{mid('engine_share'):.0%}" + (f", {slipped:.1f} s late" if slipped else ""),
        f"{mid('foreign'):.1%}",
    ]


def lines(runs: Sequence[Run], commands: Mapping[str, str], about: Mapping[str, Any]) -> list[str]:
    repeats = 1 + max(run.repeat for run in runs)
    failed = [run for run in runs if run.failed]
    return [
        "# Who keeps up: benchmark clients on one core",
        "",
        *facts.fact_lines(about),
        f"* medians of {repeats} interleaved repeat(s)",
        f"* engine on CPU {ENGINE_CPU}, client on CPU {CLIENT_CPU}",
        "",
        *PROSE,
        "",
        *facts.table(
            COLUMNS, (row(rate, name, found) for (rate, name), found in by_point(runs).items())
        ),
        "",
        *(f"* {run.failed} requests of {run.client} failed at {run.rate:,}/s" for run in failed),
        "",
        "## Commands",
        "",
        *(f"* `{command}`" for command in commands.values()),
        "",
        "## Whole runs",
        "",
        "CPU seconds of a client from its start to its exit, imports and statistics included:",
        "",
        *facts.table(
            ("events/s", "client", "CPU s"),
            (
                (
                    f"{rate:,}",
                    clients.TITLES[name],
                    f"{facts.middle(map(asdict, found), 'whole_cpu'):.1f}",
                )
                for (rate, name), found in by_point(runs).items()
            ),
        ),
    ]


def _p99_itl(run: Run) -> float:
    return run.statistics["p99_itl_ms"]


def charts(runs: Sequence[Run]) -> list[Plot]:
    rates = tuple(float(rate) for rate in sorted({run.rate for run in runs}))
    offered = Axis("Offered", "events/s", log=True, ticks=rates)
    received = Axis("Received", "%", log=False, zero=True)
    drawn: tuple[tuple[str, str, Axis, Callable[[Run], float]], ...] = (
        ("received", "Received of what was due", received, lambda run: 100 * run.kept),
        ("itl", f"P99 ITL, truth {STEP_MS:g} ms", Axis("P99 ITL", "ms", log=True), _p99_itl),
        (
            "cpu",
            "CPU for a million events",
            Axis("CPU", "s", log=True),
            lambda run: run.cpu_per_million,
        ),
    )
    plots = []
    for key, title, axis, value in drawn:
        series = []
        for style, name in enumerate(clients.NAMES):
            points = tuple(
                Point(float(rate), facts.middle([{"y": value(run)} for run in found], "y"))
                for (rate, client), found in by_point(runs).items()
                if client == name
            )
            series += [Series(clients.TITLES[name], style, points)] if points else []
        plots.append(Plot(key, title, title, offered, axis, tuple(series)))
    return plots


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[5_000, 20_000, 50_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", nargs="+", choices=clients.NAMES, default=list(clients.NAMES))
    parsed = parser.parse_args()
    os.sched_setaffinity(0, [ENGINE_CPU])
    bench, runs, gone = Bench(parsed), [], set()
    for repeat, rate, name in schedule(parsed.clients, parsed.rates, parsed.repeats):
        if (repeat, name) in gone:
            continue
        run = bench.measure(name, rate, repeat)
        runs.append(run)
        print(" | ".join(row(rate, name, [run])), flush=True)
        if run.kept < GIVES_UP:
            gone.add((repeat, name))
    about = facts.gather(parsed.peers.expanduser(), parsed.clients, sys.argv)
    stem = facts.stem("client-speed", parsed.results)
    data = {**about, "commands": bench.commands, "runs": [asdict(run) for run in runs]}
    facts.write(stem, lines(runs, bench.commands, about), data)
    print("wrote", *drawing.write(drawing.draw(charts(runs)), stem).values())


if __name__ == "__main__":
    main()
