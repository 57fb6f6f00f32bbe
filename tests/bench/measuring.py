"""A stand-in for measuring: results by a function of what was asked, and a record of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Result = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One run: the flags of `bench serve`, without their dashes, and what came with them."""

    flags: Mapping[str, str]
    seed: int
    tags: Mapping[str, Any]


def result_of(call: Call, **statistics: object) -> Result:
    """What `measure` returns, as far as loops over it look at it; `statistics` win."""
    usage = {
        "reported": 10,
        "prompt_mismatch": 0,
        "cached_tokens": statistics.pop("cached_tokens", 0),
    }
    penstock = {
        "command": "sweep",
        "server": "http://server",
        "seed": call.seed,
        **call.tags,
        "partial": statistics.pop("partial", False),
        "failure_examples": statistics.pop("failure_examples", []),
        "usage": usage,
    }
    return {
        "completed": 10,
        "failed": 0,
        "total_input_tokens": 1000,
        "generated_texts": ["secret"],
        "request_throughput": 1.0,
        "output_throughput": 100.0,
        "total_token_throughput": 200.0,
        "median_ttft_ms": 10.0,
        "p99_ttft_ms": 20.0,
        "mean_ttft_ms": 12.0,
        "mean_tpot_ms": 5.0,
        "p99_itl_ms": 9.0,
        "p99_e2el_ms": 99.0,
        **statistics,
        "penstock": penstock,
    }


@dataclass
class FakeMeasure:
    answer: Callable[[Call], Result] = result_of
    calls: list[Call] = field(default_factory=list)

    def __call__(self, words: Sequence[str], *, seed: int, tags: Mapping[str, object]) -> Result:
        names = [word.removeprefix("--") for word in words[::2]]
        call = Call(dict(zip(names, words[1::2], strict=True)), seed, tags)
        self.calls.append(call)
        return self.answer(call)


def parse(module: Any, *words: str) -> argparse.Namespace:
    """The command line of a command module."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.add_arguments(parser)
    parsed = parser.parse_args(words)
    parsed.argv = list(words)
    return parsed
