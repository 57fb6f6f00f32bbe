"""`penstock bench serve` beside `vllm bench serve` on the modelled engine: statistics and ratios.

    python benchmarks/client_agreement.py [--repeats 2] [--requests 150] [--rate 3]
        [--peers ~/.cache/peers]

The simulated engine (`penstock sim`) has the timing of a small model on two cores (profile
`default`), and counts tokens with the tokenizer that both clients use. Every run has a fresh
engine, so no client finds prefixes that the other has cached. There is a closed loop with 8
concurrent requests, and an open loop with Poisson arrivals. Penstock draws lengths and arrivals.
vLLM measures twice: with the same lengths and arrivals as a timed trace, which removes chance from
the comparison, and with its own draw, which shows how much of a P99 is chance at this number of
requests.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support import clients, facts
from support.running import CLIENT_CPU, ENGINE_CPU, Lab, Words

from penstock.hub import locate

BAR = 0.05
CONCURRENCY = 8
METRICS, KINDS = ("ttft", "tpot", "itl", "e2el"), ("mean", "median", "p99")
STATISTICS = [
    *(f"{kind}_{metric}_ms" for metric in METRICS for kind in KINDS),
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "total_input_tokens",
    "total_output_tokens",
    "duration",
    "completed",
]
PENSTOCK, VLLM = "penstock", "vllm"
SAME, OWN = "same draw", "own draws"

Result = dict[str, Any]

PROSE = (
    "Random prompts, 256 tokens in and 128 out on average (range ratio 0.2), on `penstock sim`",
    "with the profile `default`. The ratio is Penstock's number over vLLM's; **bold** is not",
    f"within 5%. `{SAME}`: vLLM replays the lengths and arrivals that Penstock drew. `{OWN}`: vLLM",
    "draws its own from the same distributions; what this adds is chance.",
)


@dataclass(slots=True)
class Agreement:
    """Results by (load, client), in order of repeats, and the command of each client."""

    runs: dict[tuple[str, str], list[Result]] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)

    def add(self, load: str, client: str, result: Mapping[str, Any]) -> None:
        self.runs.setdefault((load, client), []).append({key: result[key] for key in STATISTICS})

    @property
    def loads(self) -> list[str]:
        return list(dict.fromkeys(load for load, _client in self.runs))


class Bench:
    def __init__(self, parsed: argparse.Namespace) -> None:
        patience = 60 + 5 * parsed.requests / parsed.rate
        gguf = str(locate(parsed.model).path.resolve())
        self._lab = Lab("default", gguf, parsed.peers.expanduser(), patience)
        drawn = clients.Load(256, 128, parsed.requests, seed=0, range_ratio=0.2)
        self._loads = {
            f"closed, {CONCURRENCY} at a time": replace(drawn, concurrency=CONCURRENCY),
            f"open, {parsed.rate:g} a second": replace(drawn, rate=parsed.rate),
        }
        self.found = Agreement()

    def repeat(self, repeat: int) -> None:
        """Run all loads once, with both clients."""
        for name, load in self._loads.items():
            seeded = replace(load, seed=repeat)
            drawn = self._serve(PENSTOCK, f"{name}, {SAME}", seeded)
            self.found.add(f"{name}, {OWN}", PENSTOCK, drawn)
            self._replay(f"{name}, {SAME}", drawn, load.concurrency)
            self._serve(VLLM, f"{name}, {OWN}", seeded)

    def _serve(self, client: str, name: str, load: clients.Load) -> Mapping[str, Any]:
        def words(place: clients.Place, directory: Path) -> list[str]:
            return clients.command(client, load, place, directory)

        return self._measure(client, name, words)

    def _replay(self, name: str, drawn: Mapping[str, Any], concurrency: int | None) -> None:
        with tempfile.TemporaryDirectory(prefix="clients-") as directory:
            trace = Path(directory) / "drawn.jsonl"
            trace.write_text("\n".join(clients.trace_lines(drawn)) + "\n")

            def words(place: clients.Place, results: Path) -> list[str]:
                return clients.vllm_trace(trace, drawn["num_prompts"], concurrency, place, results)

            self._measure(VLLM, name, words)

    def _measure(self, client: str, name: str, words: Words) -> Mapping[str, Any]:
        def noted(place: clients.Place, directory: Path) -> list[str]:
            command = words(place, directory)
            self.found.commands.setdefault(f"{name}, {client}", facts.shown(command))
            return command

        result = self._lab.run(client, noted).result
        self._keep(name, client, result)
        return result

    def _keep(self, name: str, client: str, result: Mapping[str, Any]) -> None:
        self.found.add(name, client, result)
        told = (
            "median_ttft_ms",
            "p99_ttft_ms",
            "median_itl_ms",
            "p99_e2el_ms",
            "output_throughput",
        )
        print(
            f"{name} | {client} | " + ", ".join(f"{key} {result[key]:.2f}" for key in told),
            flush=True,
        )


def ratio(penstock: float, vllm: float) -> float:
    """Penstock's value relative to vLLM's; 1 if both are 0."""
    return penstock / vllm if vllm else (1.0 if penstock == vllm else float("inf"))


def ratios(found: Agreement, load: str) -> dict[str, tuple[float, float, float]]:
    """(Penstock's median, vLLM's median, their ratio) for each statistic of a load."""
    pairs = {}
    for key in STATISTICS:
        ours, theirs = (facts.middle(found.runs[load, client], key) for client in (PENSTOCK, VLLM))
        pairs[key] = (ours, theirs, ratio(ours, theirs))
    return pairs


def beyond(pairs: Mapping[str, tuple[float, float, float]]) -> list[str]:
    """The statistics whose ratio differs from 1 by more than BAR."""
    return [key for key, (_ours, _theirs, share) in pairs.items() if not abs(share - 1) <= BAR]


def _verdict(load: str, pairs: Mapping[str, tuple[float, float, float]]) -> str:
    outside = beyond(pairs)
    within = f"{len(pairs) - len(outside)} of {len(pairs)} statistics within {BAR:.0%}"
    but = f"; not {', '.join(outside)}" if outside else ""
    return f"* {load}: {within}{but}."


def lines(found: Agreement, repeats: int, about: Mapping[str, Any]) -> list[str]:
    every = {load: ratios(found, load) for load in found.loads}
    text = [
        "# `penstock bench serve` beside `vllm bench serve`",
        "",
        *facts.fact_lines(about),
        f"* medians of {repeats} interleaved repeat(s), each with a fresh engine",
        f"* engine on CPU {ENGINE_CPU}, client on CPU {CLIENT_CPU}",
        "",
        *PROSE,
        "",
        *(_verdict(load, pairs) for load, pairs in every.items()),
    ]
    for load, pairs in every.items():
        rows = [_row(key, pair, key in beyond(pairs)) for key, pair in pairs.items()]
        text += [
            "",
            f"## {load}",
            "",
            *facts.table(("statistic", "penstock", "vllm", "ratio"), rows),
        ]
    text += ["", "## Commands", ""]
    return text + [f"* {name}: `{command}`" for name, command in found.commands.items()]


def _row(key: str, pair: tuple[float, float, float], outside: bool) -> list[str]:
    ours, theirs, share = pair
    return [
        key,
        f"{ours:,.2f}",
        f"{theirs:,.2f}",
        f"**{share:.3f}**" if outside else f"{share:.3f}",
    ]


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--requests", type=int, default=150, help="of each run")
    parser.add_argument("--rate", type=float, default=3.0, help="requests/s of the open loads")
    parsed = parser.parse_args()
    os.sched_setaffinity(0, [ENGINE_CPU])
    bench = Bench(parsed)
    for repeat in range(parsed.repeats):
        bench.repeat(repeat)
    about = facts.gather(parsed.peers.expanduser(), [VLLM], sys.argv)
    found = bench.found
    runs = {f"{load}, {client}": results for (load, client), results in found.runs.items()}
    data = {**about, "commands": found.commands, "runs": runs}
    facts.write(
        facts.stem("client-agreement", parsed.results), lines(found, parsed.repeats, about), data
    )


if __name__ == "__main__":
    main()
