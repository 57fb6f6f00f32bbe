"""Runs the same load with three benchmark clients (Penstock's, vLLM's, aiperf): command lines, and
results with vLLM's keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.servers import HERE, MODEL

NAMES = ("penstock", "vllm", "aiperf")
TITLES = {"penstock": "penstock bench", "vllm": "vllm bench", "aiperf": "aiperf"}
ENVIRONMENT = {
    "penstock": {},
    "vllm": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    # aiperf 0.13 must not be in offline mode: it would take the path of a tokenizer for a name in
    # the hub's cache.
    "aiperf": {},
}


@dataclass(frozen=True, slots=True)
class Load:
    """A load of random prompts, and answers that EOS does not end. It is an open loop if `rate`
    (requests per second) is finite, else a closed loop with `concurrency` requests.
    """

    input_len: int
    output_len: int
    requests: int
    seed: int
    rate: float = math.inf
    concurrency: int | None = None
    range_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client finds the simulated engine, and the tokenizer of the prompts (as GGUF and in
    Hugging Face's format).
    """

    url: str
    gguf: str
    hf: Path
    peers: Path


def command(client: str, load: Load, place: Place, directory: Path) -> list[str]:
    """The command line of a client for a load. The client writes its results to `directory`."""
    if client == "aiperf":
        return _aiperf(load, place, directory)
    words = _shared(load, place, directory)
    if client == "vllm":
        return [str(place.peers / "vllm/bin/vllm"), *words, *_vllm_model(place)]
    return [*HERE, *words, "--tokenizer", place.gguf]


def vllm_trace(
    trace: Path, requests: int, concurrency: int | None, place: Place, directory: Path
) -> list[str]:
    """The command line of vLLM's client, with arrivals and lengths from a trace file that
    `trace_lines` made.
    """
    dataset = f"--dataset-name timed_trace --dataset-path {trace} --num-prompts {requests}"
    return [
        str(place.peers / "vllm/bin/vllm"),
        *_common(place, directory),
        *dataset.split(),
        *_closed(concurrency, "--max-concurrency"),
        *_vllm_model(place),
    ]


def _vllm_model(place: Place) -> list[str]:
    return ["--model", MODEL, "--tokenizer", str(place.hf)]


def _closed(concurrency: int | None, flag: str) -> list[str]:
    return [] if concurrency is None else [flag, str(concurrency)]


def _common(place: Place, directory: Path) -> list[str]:
    base = f"bench serve --backend openai --base-url {place.url}"
    results = (
        f"--disable-tqdm --save-result --save-detailed --result-dir {directory} "
        "--result-filename run.json"
    )
    statistics = "--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99"
    return f"{base} --disable-tqdm {results} {statistics}".split()


def _shared(load: Load, place: Place, directory: Path) -> list[str]:
    """The flags that Penstock's and vLLM's clients have in common."""
    lengths = f"--random-input-len {load.input_len} --random-output-len {load.output_len}"
    words = (
        f"--dataset-name random {lengths} --num-prompts {load.requests} --seed {load.seed} "
        "--ignore-eos"
    )
    closed = _closed(load.concurrency, "--max-concurrency")
    rate = [] if math.isinf(load.rate) else ["--request-rate", f"{load.rate:g}"]
    ratio = ["--random-range-ratio", f"{load.range_ratio:g}"] if load.range_ratio else []
    return [*_common(place, directory), *words.split(), *ratio, *closed, *rate]


def _aiperf(load: Load, place: Place, directory: Path) -> list[str]:
    if load.range_ratio:
        raise ValueError("not needed here: lengths of aiperf that differ")
    rate = f"--request-rate {load.rate:g} --arrival-pattern poisson"
    words = (
        f"profile --model {MODEL} --url {place.url} --endpoint-type completions --streaming",
        f"--isl {load.input_len} --osl {load.output_len} --request-count {load.requests}",
        "--extra-inputs ignore_eos:true --use-legacy-max-tokens --use-server-token-count",
        "--no-server-metrics --no-gpu-telemetry --export-level summary --ui none",
        f"--random-seed {load.seed} --tokenizer {place.hf} --output-artifact-dir {directory}",
        "" if math.isinf(load.rate) else rate,
    )
    program = str(place.peers / "aiperf/bin/aiperf")
    return [program, *" ".join(words).split(), *_closed(load.concurrency, "--concurrency")]


def read(client: str, directory: Path) -> dict[str, Any]:
    """The result that a client wrote, with vLLM's keys.

    Raises:
        FileNotFoundError: the client wrote none.
    """
    if client != "aiperf":
        return dict(json.loads((directory / "run.json").read_text()))
    return from_aiperf(json.loads((directory / "profile_export_aiperf.json").read_text()))


def from_aiperf(export: Mapping[str, Any]) -> dict[str, Any]:
    """aiperf's result with vLLM's keys. Its `inter_chunk_latency` is what vLLM calls ITL; its
    `inter_token_latency`, which is a mean for each request, is TPOT.
    """
    names = {
        "ttft": "time_to_first_token",
        "itl": "inter_chunk_latency",
        "tpot": "inter_token_latency",
        "e2el": "request_latency",
    }
    found: dict[str, Any] = {
        "duration": export["benchmark_duration"]["avg"],
        "completed": int(export["request_count"]["avg"]),
        "failed": int(export.get("error_request_count", {}).get("avg", 0)),
        "total_output_tokens": int(export["total_osl"]["avg"]),
    }
    for name, theirs in names.items():
        summary = export.get(theirs, {})
        for statistic, key in (("mean", "avg"), ("median", "p50"), ("p99", "p99")):
            if key in summary:
                found[f"{statistic}_{name}_ms"] = summary[key]
    return found


def trace_lines(result: Mapping[str, Any]) -> list[str]:
    """The arrivals and lengths in a detailed result of Penstock's client, as lines of a timed trace
    whose prompts share no prefix.
    """
    due, block = result["penstock"]["detail"]["due"], 16
    lines, used = [], 0
    for moment, prompt, answer in zip(
        due, result["input_lens"], result["output_lens"], strict=True
    ):
        blocks = -(-prompt // block)
        entry = {
            "timestamp": moment,
            "input_length": prompt,
            "output_length": answer,
            "hash_ids": list(range(used, used + blocks)),
        }
        used += blocks
        lines.append(json.dumps(entry))
    return lines
