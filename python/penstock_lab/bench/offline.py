"""`penstock bench offline`: throughput of one batch, like `vllm bench throughput`, on a server or
an engine in this process.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench import batches, flags, workload
from penstock_lab.bench.batches import Backend, Batch
from penstock_lab.bench.measure import WARMUP_SEED
from penstock_lab.bench.progress import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    workload.add_requests(parser)
    group = parser.add_argument_group("load")
    group.add_argument(
        "--seed", type=int, default=0, help="of lengths and prompts (default: %(default)s)"
    )
    flags.number(group, "--num-warmups", "requests before it", default=0, least=0)
    batches.add_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Run the benchmark. Exit status: 0; 1 if a request failed; 130 after Ctrl-C. Results are
    always printed and written.
    """
    backend = batches.open_backend(parsed, progress(parsed.disable_tqdm))
    measured = measure(parsed, backend)
    return batches.finish(parsed, measured, lines(measured), record(parsed, backend, measured))


def measure(parsed: argparse.Namespace, backend: Backend) -> Batch:
    """Run all requests as one batch, after the warm-up. Raises PenstockError if no warm-up request
    succeeds.
    """
    maker = backend.maker()
    if parsed.num_warmups:
        warmups = workload.requests_of(parsed, maker, parsed.seed + WARMUP_SEED, backend.chat)
        warmed = backend.run(list(warmups[: parsed.num_warmups]), "warm-up")
        if warmed.partial:
            raise KeyboardInterrupt
        if not warmed.completed:
            raise PenstockError(f"every warm-up request failed; the first: {warmed.examples[0]}")
    # Build all prompts before timing starts.
    return backend.run(
        list(workload.requests_of(parsed, maker, parsed.seed, backend.chat)), "requests"
    )


def lines(measured: Batch) -> list[str]:
    """vLLM's output lines. Failed and interrupted requests are reported, but not counted."""
    rates = _rates(measured)
    throughput = (
        f"{rates['requests_per_second']:.2f} requests/s, {rates['tokens_per_second']:.2f} total "
        f"tokens/s, {rates['output_tokens_per_second']:.2f} output tokens/s"
    )
    found = [
        f"Throughput: {throughput}",
        f"Total num prompt tokens:  {measured.input_tokens}",
        f"Total num output tokens:  {measured.output_tokens}",
    ]
    if measured.failed:
        word = "not ended" if measured.partial else "failed"
        found.append(
            f"Requests {word}: {measured.failed} of {measured.completed + measured.failed}"
        )
    return found


def record(parsed: argparse.Namespace, backend: Backend, measured: Batch) -> dict[str, Any]:
    """Content of the result file, covering successful requests."""
    rates = _rates(measured)
    found = {
        "elapsed_time": measured.seconds,
        "num_requests": measured.completed,
        "total_num_tokens": measured.input_tokens + measured.output_tokens,
        "requests_per_second": rates["requests_per_second"],
        "tokens_per_second": rates["tokens_per_second"],
    }
    return batches.record(
        parsed,
        backend,
        measured,
        found,
        command="offline",
        workload=workload.dataset_name(parsed),
        failed=measured.failed,
        total_input_tokens=measured.input_tokens,
        total_output_tokens=measured.output_tokens,
        output_tokens_per_second=rates["output_tokens_per_second"],
    )


def _rates(measured: Batch) -> dict[str, float]:
    seconds = measured.seconds or math.inf
    return {
        "requests_per_second": measured.completed / seconds,
        "tokens_per_second": (measured.input_tokens + measured.output_tokens) / seconds,
        "output_tokens_per_second": measured.output_tokens / seconds,
    }
