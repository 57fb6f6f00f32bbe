"""`penstock bench latency`: latency of one batch of fixed size, like `vllm bench latency`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench import batches, flags, stats
from penstock_lab.bench.batches import Backend, Batch
from penstock_lab.bench.datasets import RandomOptions, random_requests
from penstock_lab.bench.progress import Progress, Silent, progress
from penstock_lab.bench.request import Request

PERCENTAGES = (10, 25, 50, 75, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("batch")
    for name, least, default, meaning in (
        ("--input-len", 1, 32, "tokens of each prompt"),
        ("--output-len", 1, 128, "tokens of each answer"),
        ("--batch-size", 1, 8, "requests at once"),
        ("--num-iters-warmup", 0, 10, "batches that do not count"),
        ("--num-iters", 1, 30, "batches that do"),
    ):
        flags.number(group, name, meaning, default, least=least)
    group.add_argument("--seed", type=int, default=0, help="of prompts (default: 0)")
    batches.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Run the benchmark. Exit status: 0; 1 if an iteration failed; 130 after Ctrl-C, when the
    iterations so far are printed and written.
    """
    # A prefix cache would skip the prefill. For a server that has one, each iteration uses new
    # prompts.
    backend = batches.open_backend(parsed, Silent(), {"enable_prefix_caching": False})
    measured = measure(parsed, backend, progress(parsed.disable_tqdm))
    kept = record(parsed, backend, measured) if measured.seconds else None
    return batches.finish(parsed, measured, lines(measured), kept)


@dataclass(slots=True)
class Latencies:
    """Latencies in seconds of the iterations in which every request succeeded, and the number of
    failed iterations.
    """

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    examples: list[str] = field(default_factory=list)
    partial: bool = False


def measure(parsed: argparse.Namespace, backend: Backend, shown: Progress) -> Latencies:
    """Run warm-up and iterations, until Ctrl-C. Raises PenstockError if a warm-up fails."""
    found, seen = Latencies(), Batch()
    try:
        planned = _batches(parsed, backend)
        shown.begin("requests", parsed.batch_size * len(planned))
        for index, requests in enumerate(planned):
            done = backend.run(requests, "batch")
            _note(found, done, warm_up=index < parsed.num_iters_warmup)
            if found.partial:
                break
            seen.completed += done.completed
            seen.failed += done.failed
            seen.output_tokens += done.output_tokens
            shown.show(seen.counts(seen.completed + seen.failed))
    except KeyboardInterrupt:
        found.partial = True
    shown.end(seen.counts(seen.completed + seen.failed))
    return found


def _note(found: Latencies, done: Batch, *, warm_up: bool) -> None:
    if done.partial:
        found.partial = True
    elif done.failed and warm_up:
        raise PenstockError(f"requests of the warm-up failed: {'; '.join(done.examples)}")
    elif done.failed:
        found.failed += 1
        found.examples += done.examples
    elif not warm_up:
        found.seconds.append(done.seconds)


def _batches(parsed: argparse.Namespace, backend: Backend) -> list[Sequence[Request]]:
    """The batches of warm-up and measurement. All prompts differ."""
    count = parsed.num_iters_warmup + parsed.num_iters
    options = RandomOptions(parsed.batch_size * count, parsed.input_len, parsed.output_len)
    requests = random_requests(options, backend.maker(), parsed.seed)
    return [
        requests[index * parsed.batch_size : (index + 1) * parsed.batch_size]
        for index in range(count)
    ]


def lines(measured: Latencies) -> list[str]:
    """vLLM's output lines. Iterations with a failed request are reported, but not counted."""
    found = []
    if measured.seconds:
        found.append(f"Avg latency: {_mean(measured.seconds)} seconds")
        percentiles = _percentiles(measured.seconds)
        found += [
            f"{percent}% percentile latency: {value} seconds"
            for percent, value in percentiles.items()
        ]
    if measured.failed:
        found.append(f"Iterations with failed requests: {measured.failed}")
    if measured.partial:
        found.append(f"Interrupted after {len(measured.seconds)} iterations")
    return found


def record(parsed: argparse.Namespace, backend: Backend, measured: Latencies) -> dict[str, Any]:
    """Content of the result file. Requires at least one iteration."""
    percentiles = _percentiles(measured.seconds).items()
    found = {
        "avg_latency": _mean(measured.seconds),
        "latencies": measured.seconds,
        "percentiles": {str(percent): value for percent, value in percentiles},
    }
    return batches.record(
        parsed,
        backend,
        measured,
        found,
        command="latency",
        workload=f"{parsed.batch_size} x {parsed.input_len}/{parsed.output_len}",
        failed_iterations=measured.failed,
    )


def _mean(seconds: Sequence[float]) -> float:
    return stats.summarise(seconds, ()).mean


def _percentiles(seconds: Sequence[float]) -> dict[int, float]:
    return dict(zip(PERCENTAGES, stats.summarise(seconds, PERCENTAGES).percentiles, strict=True))
