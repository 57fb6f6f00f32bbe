"""Fits `penstock sim` to the real engine on this machine, then validates it on other loads.

    python benchmarks/sim_calibration.py [--trace azure_llm_2023_conv.csv] [--profile NAME]
        [--repeats 2]

Fit: TTFT of lone requests by prompt length gives the cost of a step, of a prompt token and of
prompt attention. Median ITL with 1 to 32 equal requests gives the decode cost by batch; long
contexts give the cost of attention. The profile is written to benchmarks/profiles. Validation:
closed loops, a shared prefix, an open loop and a window of a trace, each with the same prompts and
arrivals on the real engine and on the modelled one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from support import facts
from support.fitting import Decode, fit_prefill, timing
from support.servers import Server, simulation

from penstock.config import ON_CPUS
from penstock_lab.bench.body import ENDPOINTS
from penstock_lab.bench.compare.load import Loads
from penstock_lab.bench.compare.processes import wait_until_quiet
from penstock_lab.bench.measure import parse_workload
from penstock_lab.bench.progress import progress
from penstock_lab.bench.target import Wanted

BUDGET = ON_CPUS.tokens
"""Maximum number of tokens in a step, which is the default of both engines."""
LIMITS = {
    "max_model_len": 8192,
    "max_num_seqs": ON_CPUS.sequences,
    "max_num_batched_tokens": BUDGET,
    "block_size": 32,
    "num_blocks": 2048,
}
LENGTHS = (16, 64, 128, 256, 400, 512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32)
LONG = ((1, 2048), (8, 512), (32, 256))
"""(batch size, prompt length in tokens) of the loads that measure the cost of attention."""
SHORT = 32
"""Prompt length in tokens of the loads that measure the cost of a decode."""
ALONE = 4
"""Number of lone prompts of each length."""
LEFT_OUT = (
    "What the model leaves out, and which way that shows:",
    "",
    "* The cost of a step is a sum. A real step that computes a chunk and decodes reads the",
    "  weights once, so decodes beside a chunk cost less than in a step of their own: modelled",
    "  TTFT and ITL P99 are too high where many prompts meet many decodes.",
    "* Sequences with a common prefix read the same keys, which stay in the processor's cache: a",
    "  shared prefix is modelled too slow.",
    "* Attention costs the same for each token whether the keys fit the processor's cache or not:",
    "  many long contexts are modelled too fast.",
    "* Tokenization and HTTP, which share the processors with the real engine, cost it nothing.",
)
QUIET_WAIT_S, MAX_FOREIGN = 60.0, 0.05
CHECKED = {
    "median_ttft_ms": "TTFT median",
    "p99_ttft_ms": "TTFT P99",
    "median_tpot_ms": "TPOT median",
    "p99_itl_ms": "ITL P99",
    "median_e2el_ms": "E2EL median",
    "output_throughput": "output tok/s",
}
MIDDLING = "serve --random-input-len 256 --random-output-len 128"
CHECKS = {
    "8 at a time, 256/128": f"{MIDDLING} --max-concurrency 8 --num-prompts 48",
    "32 at a time, 256/128": f"{MIDDLING} --max-concurrency 32 --num-prompts 96",
    "shared prefix 1024, 8 at a time, 128/64": (
        "serve --random-prefix-len 1024 --random-input-len 128 --random-output-len 64 "
        "--max-concurrency 8 --num-prompts 32"
    ),
    "open, 3.5 a second, 256/128": f"{MIDDLING} --request-rate 3.5 --num-prompts 84",
}
TRACE = (
    "trace {} --start 120 --duration 24 --time-scale 1.2 --length-scale 0.25 --max-model-len 2048"
)


class Bench:
    """Runs loads on a real engine and on a simulated one."""

    def __init__(self, model: str) -> None:
        wanted = Wanted("openai", ENDPOINTS["openai"], None, None, 600.0)
        self._loads = Loads(wanted, (), model, progress(True))

    def run(self, words: str, server: Server, seed: int) -> dict[str, Any]:
        """Run one load.

        Raises:
            RuntimeError: a request failed.
        """
        wait_until_quiet(QUIET_WAIT_S, MAX_FOREIGN)
        result = self._loads(
            parse_workload(f"{words} --temperature 0".split()), server.url, seed, {}
        )
        if result["failed"]:
            raise RuntimeError(f"{words}: {result['penstock']['failure_examples']}")
        return result

    def ttfts_us(self, server: Server, prompt: int, seed: int) -> list[float]:
        words = f"serve --random-input-len {prompt} --random-output-len 1 --max-concurrency 1"
        result = self.run(f"{words} --num-prompts {ALONE}", server, seed)
        return [seconds * 1e6 for seconds in result["ttfts"]]

    def decode(self, server: Server, batch: int, prompt: int, seed: int) -> Decode:
        """Measure the median time of a step that only decodes. All requests start at once, and
        answers have many more tokens than prompts have chunks, so the median ITL is this time.
        """
        answer = max(64, 8 * batch * prompt // BUDGET)
        words = (
            f"serve --random-input-len {prompt} --random-output-len {answer} --num-prompts {batch}"
        )
        result = self.run(words, server, seed)
        return Decode(batch, prompt + answer / 2, result["median_itl_ms"] * 1e3)


def calibrate(bench: Bench, server: Server, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The profile for the simulated engine, and the measurements to which it was fitted."""
    seeds = iter(range(10_000, 20_000))
    ttfts: dict[int, list[float]] = {prompt: [] for prompt in LENGTHS}
    steps: dict[tuple[int, int], list[Decode]] = {}
    for _repeat in range(repeats):
        for prompt in LENGTHS:
            ttfts[prompt] += bench.ttfts_us(server, prompt, next(seeds))
        for batch, prompt in [*((batch, SHORT) for batch in BATCHES), *LONG]:
            steps.setdefault((batch, prompt), []).append(
                bench.decode(server, batch, prompt, next(seeds))
            )
    points = [
        Decode(batch, own[0].context, median(point.step_us for point in own))
        for (batch, _), own in steps.items()
    ]
    prefill = fit_prefill(ttfts, BUDGET, min(point.step_us for point in points))
    data = {
        "ttft_ms": {
            str(prompt): {
                "measured": round(median(own) / 1e3, 3),
                "fitted": round(prefill.ttft_us(prompt, BUDGET) / 1e3, 3),
            }
            for prompt, own in ttfts.items()
        },
        "steps": [asdict(point) for point in points],
    }
    return {**LIMITS, "timing": timing(prefill, points)}, data


def check(
    bench: Bench, real: Server, modelled: Server, workloads: Mapping[str, str], repeats: int
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Run all workloads on both engines, which get the same seeds. Returns statistics by workload
    and engine, a dict for each repeat.
    """
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for repeat in range(repeats):
        for index, (name, words) in enumerate(workloads.items()):
            for engine, server in (("real", real), ("modelled", modelled)):
                result = bench.run(words, server, 100 * (repeat + 1) + index)
                kept = {key: float(result[key]) for key in CHECKED}
                found.setdefault(name, {}).setdefault(engine, []).append(kept)
                print(
                    name, engine, {key: round(value, 2) for key, value in kept.items()}, flush=True
                )
    return found


def check_rows(found: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> list[list[str]]:
    rows = []
    for name, engines in found.items():
        cells = []
        for key in CHECKED:
            real, modelled = (facts.middle(engines[engine], key) for engine in ("real", "modelled"))
            cells.append(f"{modelled:,.1f} / {real:,.1f} = {modelled / real:.2f}")
        rows.append([name, *cells])
    return rows


def lines(about: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    profile, fitted = data["profile"], data["fitted"]
    ttfts = [
        (
            prompt,
            f"{own['measured']:,.1f}",
            f"{own['fitted']:,.1f}",
            f"{own['fitted'] / own['measured']:.2f}",
        )
        for prompt, own in fitted["ttft_ms"].items()
    ]
    steps = [
        (point["batch"], f"{point['context']:,.0f}", f"{point['step_us'] / 1e3:.2f}")
        for point in fitted["steps"]
    ]
    return [
        "# The modelled engine beside the real one",
        "",
        *facts.fact_lines(about),
        f"* medians of {data['repeats']} repeat(s); the real engine and the client share all",
        "processors",
        "",
        "The profile was fitted to lone requests and to batches of equal ones; the workloads of",
        "this table were not used. Modelled / real = ratio, the same prompts and arrivals on",
        "both; ms but for tok/s.",
        "",
        *facts.table(("workload", *CHECKED.values()), check_rows(data["checked"])),
        "",
        *LEFT_OUT,
        "",
        "## What the profile was fitted to",
        "",
        "TTFT of a lone request, ms:",
        "",
        *facts.table(("prompt tokens", "measured", "fitted", "ratio"), ttfts),
        "",
        "Median step, ms:",
        "",
        *facts.table(("sequences", "context of each", "measured"), steps),
        "",
        "## Profile",
        "",
        "```json",
        json.dumps(profile, indent=1),
        "```",
        "",
        "## Workloads",
        "",
        *(f"* {name}: `penstock bench {words}`" for name, words in data["workloads"].items()),
    ]


def main() -> None:
    parser = facts.parser(__doc__)
    parser.add_argument(
        "--trace", type=Path, help="Azure's CSV; default: no trace among the checks"
    )
    parser.add_argument("--profile", default="smollm2-2-cores", help="name in benchmarks/profiles")
    parser.add_argument(
        "--profiles", type=Path, default=facts.ROOT / "benchmarks/profiles", help="directory"
    )
    parser.add_argument("--repeats", type=int, default=2)
    parsed = parser.parse_args()
    workloads = dict(CHECKS)
    if parsed.trace:
        workloads["window of the Azure trace"] = TRACE.format(parsed.trace)
    data = _measure(parsed, workloads)
    parsed.profiles.mkdir(parents=True, exist_ok=True)
    path = parsed.profiles / f"{parsed.profile}.json"
    path.write_text(json.dumps(data["profile"], indent=1) + "\n")
    about = facts.gather(parsed.peers, [], sys.argv)
    facts.write(
        facts.stem("sim-calibration", parsed.results), lines(about, data), {**about, **data}
    )


def _measure(parsed: argparse.Namespace, workloads: Mapping[str, str]) -> dict[str, Any]:
    bench = Bench(parsed.model)
    cpus = [0, 1]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="calibration-")))
        words = ["serve", parsed.model, "--max-model-len", str(LIMITS["max_model_len"])]
        real = stack.enter_context(Server(words, cpus, directory / "serve.log"))
        bench.decode(real, 4, SHORT, 1)  # Warm-up.
        profile, fitted = calibrate(bench, real, parsed.repeats)
        print(json.dumps(profile["timing"]), flush=True)
        modelled = stack.enter_context(simulation(profile, parsed.model, cpus, directory))
        checked = check(bench, real, modelled, workloads, parsed.repeats)
    return {
        "repeats": parsed.repeats,
        "profile": profile,
        "fitted": fitted,
        "workloads": {name: facts.shown([words]) for name, words in workloads.items()},
        "checked": checked,
    }


if __name__ == "__main__":
    main()
