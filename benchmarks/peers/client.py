"""The one HTTP client of all servers: vLLM's `vllm bench serve`, called in process to save 15 s of imports a
run.

Import it only inside the vLLM environment that install_vllm.sh makes.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from peers.report import LATENCIES
from peers.workloads import Workload
from vllm.benchmarks.serve import add_cli_args, main_async
from vllm.utils.argparse_utils import FlexibleArgumentParser

KEPT = (
    "completed",
    "failed",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
)


def command_line(base_url: str, model: str, tokenizer: Path, workload: Workload, seed: int) -> list[str]:
    """Arguments of `vllm bench serve` for one run."""
    options = {
        "backend": "openai",
        "base-url": base_url,
        "endpoint": "/v1/completions",
        "model": model,
        "tokenizer": tokenizer,
        "dataset-name": "random",
        "random-prefix-len": workload.prefix,
        "random-input-len": workload.prompt,
        "random-output-len": workload.output,
        "max-concurrency": workload.concurrency,
        "num-prompts": workload.prompts,
        "seed": seed,
        "temperature": 0,
        "ready-check-timeout-sec": 0,
        "percentile-metrics": ",".join(LATENCIES),
        "metric-percentiles": "50,99",
    }
    pairs = [(f"--{name}", str(value)) for name, value in options.items()]
    return ["--ignore-eos", "--disable-tqdm", *(word for pair in pairs for word in pair)]


@contextlib.contextmanager
def _stdout_to(log: Path) -> Iterator[None]:
    """Send file descriptor 1 to `log`: the client prints a page for each run."""
    sys.stdout.flush()
    saved = os.dup(1)
    with log.open("ab") as sink:
        os.dup2(sink.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(saved, 1)
            os.close(saved)


class Client:
    """Runs workloads against OpenAI-compatible servers and returns plain numbers."""

    def __init__(self, tokenizer: Path, log: Path) -> None:
        """`tokenizer` is the Hugging Face directory that the random prompts are made with."""
        self._tokenizer = tokenizer
        self._log = log
        self._parser = FlexibleArgumentParser()
        add_cli_args(self._parser)

    def run(self, base_url: str, model: str, workload: Workload, seed: int) -> dict[str, float]:
        """One run. Times in ms, throughput in tokens or requests per second."""
        arguments: argparse.Namespace = self._parser.parse_args(
            command_line(base_url, model, self._tokenizer, workload, seed)
        )
        with _stdout_to(self._log):
            result = asyncio.run(main_async(arguments))
        numbers = {name: result[name] for name in KEPT}
        numbers["input_throughput"] = result["total_input_tokens"] / result["duration"]
        for latency in LATENCIES:
            for statistic in ("mean", "median", "p99"):
                numbers[f"{statistic}_{latency}_ms"] = result[f"{statistic}_{latency}_ms"]
        return {name: round(float(value), 3) for name, value in numbers.items()}
