"""OpenVINO GenAI behind a line protocol, because its package has no server.

usage: openvino_worker.py MODEL_DIRECTORY THREADS        (run it in the OpenVINO environment)

Prints {"ready": version} once loaded, then answers every line of JSON on stdin ({"prefix", "prompt",
"output", "concurrency", "prompts", "seed"}) with a line of numbers. No HTTP, tokenization or client is in
them, which favours OpenVINO a little. Requests are closed-loop as in the HTTP client and prompts are token
ids of the same lengths.
"""

import itertools
import json
import random
import sys
import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

VOCABULARY = range(100, 49_000)
IDENTIFIERS = itertools.count()


@dataclass
class Request:
    """One open request: its handle and the times (s) at which it was sent and tokens came back."""

    handle: Any
    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0


def load(model: str, threads: int) -> genai.ContinuousBatchingPipeline:
    """The pipeline with continuous batching, prefix caching and 4 GB of KV cache."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}, {})


def prompts(job: dict[str, int]) -> list[list[int]]:
    """Random token ids, the first `prefix` of them shared."""
    source = random.Random(job["seed"])
    prefix = source.choices(VOCABULARY, k=job["prefix"])
    return [prefix + source.choices(VOCABULARY, k=job["prompt"]) for _ in range(job["prompts"])]


def collect(request: Request, now: float) -> None:
    """Take what the pipeline has for `request`."""
    if request.handle.can_read():
        count = sum(len(output.generated_ids) for output in request.handle.read().values())
        if count:
            request.tokens += count
            request.arrivals.append(now)


def drive(pipeline: genai.ContinuousBatchingPipeline, job: dict[str, int]) -> tuple[list[Request], float]:
    """Run the closed loop; the finished requests and the wall time in seconds."""
    generation = genai.GenerationConfig()
    generation.max_new_tokens = job["output"]
    generation.ignore_eos = True
    generation.do_sample = False
    waiting, live, done = prompts(job), [], []
    start = time.perf_counter()
    while len(done) < job["prompts"]:
        while waiting and len(live) < job["concurrency"]:
            ids = ov.Tensor(np.array([waiting.pop()], dtype=np.int64))
            handle = pipeline.add_request(next(IDENTIFIERS), ids, generation)
            live.append(Request(handle, time.perf_counter()))
        pipeline.step()
        now = time.perf_counter()
        for request in live:
            collect(request, now)
        done += [request for request in live if request.tokens >= job["output"]]
        live = [request for request in live if request.tokens < job["output"]]
    return done, time.perf_counter() - start


def statistics(name: str, seconds: list[float]) -> dict[str, float]:
    """Mean, median and 99th percentile in ms; zeros where nothing was measured."""
    if not seconds:
        return {f"{statistic}_{name}_ms": 0.0 for statistic in ("mean", "median", "p99")}
    values = {"mean": fmean(seconds), "median": np.percentile(seconds, 50), "p99": np.percentile(seconds, 99)}
    return {f"{statistic}_{name}_ms": round(float(value) * 1e3, 3) for statistic, value in values.items()}


def measure(pipeline: genai.ContinuousBatchingPipeline, job: dict[str, int]) -> dict[str, float]:
    """Numbers of one workload under the names that the HTTP client uses."""
    requests, wall = drive(pipeline, job)
    produced = sum(request.tokens for request in requests)
    read = (job["prefix"] + job["prompt"]) * job["prompts"]
    steps = [b - a for r in requests for a, b in zip(r.arrivals, r.arrivals[1:], strict=False)]
    per_token = [(r.arrivals[-1] - r.arrivals[0]) / (r.tokens - 1) for r in requests if r.tokens > 1]
    return {
        "completed": len(requests), "failed": 0, "duration": round(wall, 3), "total_input_tokens": read,
        "total_output_tokens": produced, "request_throughput": round(len(requests) / wall, 3),
        "output_throughput": round(produced / wall, 3), "input_throughput": round(read / wall, 3),
        **statistics("ttft", [r.arrivals[0] - r.sent for r in requests]),
        **statistics("tpot", per_token), **statistics("itl", steps),
    }  # fmt: skip


def main() -> None:
    """Load, say so, answer jobs until stdin ends."""
    pipeline = load(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"ready": genai.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(pipeline, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
