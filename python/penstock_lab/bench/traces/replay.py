"""Converts a trace to requests: due times, lengths, and prompts that share the same prefixes as in
the trace.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.prompts import PromptMaker, ids
from penstock_lab.bench.prompts.lazy import LazyRequests
from penstock_lab.bench.request import Request
from penstock_lab.bench.traces.read import Arrival, Trace


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    time_scale: float = 1.0
    """Factor for the time after the first request at which each request is due. Below 1 the load is
    heavier than recorded.
    """
    start: float = 0.0
    """Start of the window in seconds of trace time."""
    duration: float | None = None
    """Duration of the window in seconds of trace time."""
    num_prompts: int | None = None
    """Maximum number of requests, from the start of the window."""
    length_scale: float = 1.0
    """Factor for input and output lengths, which stay at least 1 token. If the trace has hash ids,
    the factor applies to the block size, which is rounded to an integer; inputs scale with it.
    """
    max_input_len: int | None = None
    max_output_len: int | None = None
    max_model_len: int | None = None
    """The server's limit on input and output tokens together."""

    def __post_init__(self) -> None:
        _positive("--time-scale", self.time_scale, zero=True)
        _positive("--length-scale", self.length_scale)
        _positive("--start", self.start, zero=True)
        for name, value in (
            ("--duration", self.duration),
            ("--num-prompts", self.num_prompts),
            ("--max-input-len", self.max_input_len),
            ("--max-output-len", self.max_output_len),
            ("--max-model-len", self.max_model_len),
        ):
            if value is not None:
                _positive(name, value)


def _positive(name: str, value: float, zero: bool = False) -> None:
    if not (0 < value < math.inf or (zero and value == 0)):
        raise InvalidValueError(name, value, "a number from 0" if zero else "a number above 0")


class Replay(LazyRequests):
    """Requests in the order of the trace, and counts of adaptations."""

    def __init__(
        self, plan: _Plan, maker: PromptMaker, seed: int, notes: Mapping[str, int]
    ) -> None:
        super().__init__(range(len(plan.due)), lambda index: _build(plan, index, maker, seed))
        self.notes = notes
        """Numbers of requests by key: total, failures (skipped when read), selected (in the
        window), shortened (input truncated to fit), dropped (no room for an input of one token).
        """


@dataclass(frozen=True, slots=True)
class _Plan:
    """Requests of a replay as columns. Prompts are built later, one at a time."""

    arrivals: tuple[Arrival, ...]
    length_scale: float
    position: array[int]
    """Index of each request in the trace."""
    due: array[float]
    inputs: array[int]
    """Prompt tokens to generate, without those that the server adds."""
    outputs: array[int]


def replay(trace: Trace, options: ReplayOptions, maker: PromptMaker, seed: int) -> Replay:
    """The requests to send. A prompt depends only on the seed, its index in the trace and its hash
    ids.
    """
    window = _window(trace, options)
    plan, shortened = _planned(trace, window, options, maker)
    if not plan.due:
        raise PenstockError(
            f"{trace.path}: none of {len(window)} requests fits (--max-input-len "
            f"{options.max_input_len}, "
            f"--max-model-len {options.max_model_len}): lower --length-scale or --max-output-len"
        )
    notes = {
        "total": len(trace.arrivals) + trace.failures,
        "failures": trace.failures,
        "selected": len(window),
        "shortened": shortened,
        "dropped": len(window) - len(plan.due),
    }
    return Replay(plan, maker, seed, notes)


def _planned(
    trace: Trace, window: range, options: ReplayOptions, maker: PromptMaker
) -> tuple[_Plan, int]:
    """The plan, and the number of shortened inputs."""
    plan = _Plan(
        trace.arrivals, options.length_scale, array("q"), array("d"), array("q"), array("q")
    )
    shortened = 0
    origin = trace.arrivals[window.start].at
    for position in window:
        arrival = trace.arrivals[position]
        wanted, output = _scaled(arrival, options)
        own, room = max(1, wanted - maker.special), _room(options, output, maker)
        if room < 1:
            continue
        shortened += own > room
        plan.position.append(position)
        plan.due.append(options.time_scale * (arrival.at - origin))
        plan.inputs.append(min(own, room))
        plan.outputs.append(output)
    return plan, shortened


def _window(trace: Trace, options: ReplayOptions) -> range:
    end = math.inf if options.duration is None else options.start + options.duration
    first = bisect_left(trace.arrivals, options.start, key=lambda arrival: arrival.at)
    after = bisect_left(trace.arrivals, end, key=lambda arrival: arrival.at)
    if options.num_prompts is not None:
        after = min(after, first + options.num_prompts)
    if first >= after:
        raise PenstockError(
            f"{trace.path}: no request from second {options.start:g} to {end:g}; the trace spans "
            f"seconds 0 to {trace.span:.1f} (--start and --duration are in its own time)"
        )
    return range(first, after)


def _scaled(arrival: Arrival, options: ReplayOptions) -> tuple[int, int]:
    """Input and output tokens before truncation to fit the server."""
    scale = options.length_scale
    output = max(1, round(arrival.output_tokens * scale))
    if options.max_output_len is not None:
        output = min(output, options.max_output_len)
    if arrival.hash_ids:
        scale = scaled_block(arrival, scale) / arrival.block_tokens
    return max(1, round(arrival.input_tokens * scale)), output


def scaled_block(arrival: Arrival, length_scale: float) -> int:
    return max(1, round(arrival.block_tokens * length_scale))


def _room(options: ReplayOptions, output: int, maker: PromptMaker) -> int:
    """Maximum number of prompt ids to generate for a request with `output` output tokens, so that
    the limits in `options` hold.
    """
    room = 2**62
    if options.max_input_len is not None:
        room = options.max_input_len - maker.special
    if options.max_model_len is not None:
        room = min(room, options.max_model_len - output - maker.overhead)
    return room


def _build(plan: _Plan, index: int, maker: PromptMaker, seed: int) -> Request:
    position, length = plan.position[index], plan.inputs[index]
    arrival = plan.arrivals[position]
    tokens: list[int] = []
    if arrival.hash_ids:
        block = scaled_block(arrival, plan.length_scale)
        for hash_id in arrival.hash_ids[: -(-length // block)]:
            tokens += ids.block(maker.vocabulary, seed, hash_id, min(block, length - len(tokens)))
    # Tokens without hash ids are unique to the request.
    tokens += ids.fresh(maker.vocabulary, seed, position, length - len(tokens))
    return Request(
        maker.prompt(tokens), length + maker.overhead, plan.outputs[index], plan.due[index]
    )
