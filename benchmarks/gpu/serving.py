"""Measures requests on the backend without a server: mini-sglang's offline table, and
closed loops.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from benchmarks.gpu.driver import requests
from benchmarks.gpu.items import Results
from benchmarks.gpu.loads import Workload
from benchmarks.gpu.machine import Ceilings
from benchmarks.gpu.shapes import Shape

if TYPE_CHECKING:
    from benchmarks.gpu.models import Model


def closed_loop(results: Results, model: Model, workload: Workload) -> None:
    """Run the workload with Penstock's scheduler on the backend, without the API server."""
    own = workload.tiny() if model.timing.dry else workload
    lengths = [(own.prompt, own.output)] * own.count
    asked = requests(lengths, model.shape.vocabulary, own.prefix)
    seconds = model.driver.run(asked, own.concurrency or own.count, prefixes=own.prefix > 0)
    first = [1e3 * (each.first_s - each.sent_s) for each in asked]
    each = [1e3 * (one.last_s - one.first_s) / max(1, one.output - 1) for one in asked]
    results.row(
        "closed loops",
        workload=own.name,
        requests=own.count,
        concurrency=own.concurrency,
        output_tokens_per_s=own.count * own.output / seconds,
        prompt_tokens_per_s=sum(len(one.prompt) for one in asked) / seconds,
        ttft_ms=mean(first),
        longest_ttft_ms=max(first),
        tpot_ms=mean(each) if own.output > 1 else None,
    )


def offline_lengths(dry: bool) -> list[tuple[int, int]]:
    """(prompt tokens, output tokens) of 256 requests, each from 100 to 1024; few and short ones in
    a dry run.
    """
    drawn, (low, high, count) = random.Random(0), (4, 12, 6) if dry else (100, 1024, 256)
    return [(drawn.randint(low, high), drawn.randint(low, high)) for _ in range(count)]


def offline(results: Results, model: Model) -> None:
    """Measure a batch whose requests are all submitted at once; the KV blocks limit how many run at
    the same time.
    """
    lengths = offline_lengths(model.timing.dry)
    steps = model.driver.steps
    seconds = model.driver.run(requests(lengths, model.shape.vocabulary), len(lengths))
    steps = model.driver.steps - steps
    ideal = least_seconds(model.shape, lengths, steps, model.ceilings)
    output = sum(n for _, n in lengths)
    results.row(
        "offline",
        requests=len(lengths),
        steps=steps,
        seconds=seconds,
        output_tokens_per_s=output / seconds,
        ceiling=output / ideal if ideal else None,
        of_ceiling=ideal / seconds if ideal else None,
    )


def least_seconds(
    shape: Shape, lengths: Sequence[tuple[int, int]], steps: int, ceilings: Ceilings
) -> float:
    """Lower bound in seconds for a batch, at the measured ceilings: weights are read once in each
    step, the KV that a token sees once for each output token, and prompts are computed at the rate
    of a large product. Zero if the ceilings are unknown.
    """
    if not ceilings.bandwidth or not ceilings.rate:
        return 0.0
    output = sum(n for _, n in lengths)
    seen = sum(prompt * n + n * n // 2 for prompt, n in lengths)
    read = steps * shape.step_bytes(max(1, output // steps)) + shape.kv_bytes(seen)
    products = sum(shape.prompt_operations(prompt) for prompt, _ in lengths)
    return read / ceilings.bandwidth + products / ceilings.rate
