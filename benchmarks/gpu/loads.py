"""Reads the server workloads in benchmarks/peers/workloads.txt and benchmarks/gpu/workloads.txt."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu.sizes import BLOCK

FILES = (
    Path(__file__).parents[1] / "peers/workloads.txt",
    Path(__file__).with_name("workloads.txt"),
)
LARGE = ("Qwen3-14B", "Qwen3-30B-A3B")
"""Slow models, which run only the workloads W1 to W3."""


@dataclass(frozen=True)
class Workload:
    """A workload: one line of these files. Lengths are in tokens."""

    name: str
    prefix: int
    """Length of the prefix that all prompts share."""
    prompt: int
    output: int
    count: int
    concurrency: int | None
    """Number of concurrent requests; None if requests arrive at `rate`."""
    rate: float | None = None
    """Requests per second, which arrive at random times."""

    @property
    def words(self) -> list[str]:
        """Flags of `penstock bench serve` for this workload."""
        pairs = {
            "--random-prefix-len": self.prefix or None,
            "--random-input-len": self.prompt,
            "--random-output-len": self.output,
            "--max-concurrency": self.concurrency,
            "--request-rate": self.rate,
            "--num-prompts": self.count,
            "--temperature": 0,
        }
        given = {flag: value for flag, value in pairs.items() if value is not None}
        return [word for flag, value in given.items() for word in (flag, f"{value:g}")]

    def tiny(self) -> Workload:
        """The workload for a dry run: few short requests."""
        return replace(
            self,
            prefix=BLOCK if self.prefix else 0,
            prompt=-(-self.prompt // 16),
            output=min(self.output, 2 + self.output // 128),
            count=min(self.count, 4),
            concurrency=self.concurrency and min(self.concurrency, 2),
        )


# For the first request to a server, and for the time to first token of short prompts.
FIRST = Workload("first", 0, 128, 2, 1, 1)
ALONE = Workload("P128", 0, 128, 2, 16, 1)


def workloads() -> dict[str, Workload]:
    lines = [line.split("#")[0].strip() for file in FILES for line in file.read_text().splitlines()]
    found = [_parsed(*line.split(":", 1)) for line in lines if line]
    return {each.name: each for each in (FIRST, ALONE, *found)}


def _parsed(name: str, flags: str) -> Workload:
    parser = argparse.ArgumentParser()
    parser.add_argument("--random-prefix-len", type=int, default=0)
    parser.add_argument("--random-input-len", type=int, required=True)
    parser.add_argument("--random-output-len", type=int, required=True)
    parser.add_argument("--num-prompts", type=int, required=True)
    parser.add_argument("--temperature", type=float, choices=[0.0], required=True)
    pace = parser.add_mutually_exclusive_group(required=True)
    pace.add_argument("--max-concurrency", type=int)
    pace.add_argument("--request-rate", type=float)
    words = shlex.split(flags)
    assert words[0] == "serve", f"{name} is no workload of a server: {flags}"
    found = parser.parse_args(words[1:])
    return Workload(
        name,
        found.random_prefix_len,
        found.random_input_len,
        found.random_output_len,
        found.num_prompts,
        found.max_concurrency,
        found.request_rate,
    )
