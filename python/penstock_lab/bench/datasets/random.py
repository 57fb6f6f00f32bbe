"""Prompts of random words with uniform (vLLM) or normal (GenAI-Perf) lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from penstock.core import InvalidValueError
from penstock_lab.bench.prompts import PromptMaker, ids
from penstock_lab.bench.prompts.lazy import LazyRequests
from penstock_lab.bench.request import Request


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Lengths L of inputs and outputs, in tokens. With a range ratio r, lengths are uniform
    integers from floor(L(1-r)) to ceil(L(1+r)). With a standard deviation, they are normal around
    L, rounded, and at least 1. `prefix_len` is added to the input.
    """

    num_prompts: int = 1000
    input_len: int = 1024
    output_len: int = 128
    range_ratio: tuple[float, float] = (0.0, 0.0)
    """Range ratios of inputs and outputs, each in [0, 1)."""
    prefix_len: int = 0
    """Length in tokens of a prefix shared by all prompts."""
    input_stddev: float = 0.0
    output_stddev: float = 0.0

    def __post_init__(self) -> None:
        _at_least("--num-prompts", self.num_prompts, 1)
        _at_least("--random-input-len", self.input_len, 0)
        _at_least("--random-output-len", self.output_len, 1)
        _at_least("--random-prefix-len", self.prefix_len, 0)
        for ratio in self.range_ratio:
            if not 0 <= ratio < 1:
                raise InvalidValueError("--random-range-ratio", ratio, "a number in [0, 1)")
        for name, stddev, ratio in (
            ("input", self.input_stddev, self.range_ratio[0]),
            ("output", self.output_stddev, self.range_ratio[1]),
        ):
            if not 0 <= stddev < math.inf:
                raise InvalidValueError(
                    f"standard deviation of the {name} length", stddev, "a number from 0"
                )
            if stddev and ratio:
                raise InvalidValueError(
                    "--random-range-ratio", ratio, f"0 with a standard deviation ({name})"
                )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidValueError(name, value, f"a whole number from {least}")


def parse_range_ratio(text: str) -> tuple[float, float]:
    """Parse --random-range-ratio: `0.3` for both, or `{"input": 0.3, "output": 0.5}`."""
    try:
        parsed = json.loads(text)
        if isinstance(parsed, dict):
            return float(parsed["input"]), float(parsed["output"])
        return float(parsed), float(parsed)
    except (ValueError, TypeError, KeyError) as error:
        expected = 'a number in [0, 1), or {"input": number, "output": number}'
        raise InvalidValueError("--random-range-ratio", text, expected) from error


def random_requests(options: RandomOptions, maker: PromptMaker, seed: int) -> Sequence[Request]:
    """Requests whose prompts have nothing in common except the prefix of `prefix_len` tokens.

    A requested length includes the tokens that the tokenizer adds (`maker.special`), but not those
    of a chat template. The same seed gives the same lengths for any vocabulary.
    """
    own = max(0, options.input_len - maker.special)
    rng = Random(f"lengths:{seed}")
    draw_input = _lengths(rng, own, options.range_ratio[0], options.input_stddev, least=0)
    draw_output = _lengths(
        rng, options.output_len, options.range_ratio[1], options.output_stddev, least=1
    )
    inputs = [draw_input() for _ in range(options.num_prompts)]
    outputs = [draw_output() for _ in range(options.num_prompts)]
    _check_least(options, maker, own)
    prefix = ids.shared_prefix(maker.vocabulary, seed, options.prefix_len)

    def build(index: int) -> Request:
        tokens = prefix + ids.fresh(maker.vocabulary, seed, index, inputs[index])
        return Request(maker.prompt(tokens), len(tokens) + maker.overhead, outputs[index])

    return LazyRequests(range(options.num_prompts), build)


def _lengths(rng: Random, mean: int, ratio: float, stddev: float, least: int) -> Callable[[], int]:
    if stddev:
        return lambda: max(1, round(rng.gauss(mean, stddev)))
    low, high = math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
    return lambda: rng.randint(max(low, least), max(high, least))


def _check_least(options: RandomOptions, maker: PromptMaker, own: int) -> None:
    low = 1 if options.input_stddev else math.floor(own * (1 - options.range_ratio[0]))
    if options.prefix_len + low < 1:
        ratio = options.range_ratio[0]
        expected = (
            f"more: {maker.special} tokens are the tokenizer's own, range ratio {ratio} "
            "leaves none else"
        )
        raise InvalidValueError("--random-input-len", options.input_len, expected)
