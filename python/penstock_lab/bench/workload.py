"""Builds workloads from flags: requests with due times, and the workload's name in results."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from penstock.config.log import warn
from penstock.core import InvalidValueError
from penstock_lab.bench import arrivals, flags, traces
from penstock_lab.bench.datasets import (
    FileOptions,
    RandomOptions,
    custom_requests,
    parse_range_ratio,
    random_requests,
    sharegpt_requests,
)
from penstock_lab.bench.prompts import PromptMaker
from penstock_lab.bench.request import Request
from penstock_lab.bench.result import RampUp, Traffic
from penstock_lab.bench.target import Target
from penstock_lab.bench.traces import Replay, ReplayOptions, Trace


@dataclass(frozen=True, slots=True)
class Workload:
    requests: Sequence[Request]
    traffic: Traffic
    name: str
    """The workload's name in reports."""
    axis: str | None
    """The property that makes this load lighter or heavier: concurrency, rate or time_scale."""
    point: float | None
    ignore_eos: bool
    """Whether outputs must have exactly the requested length."""
    trace: Mapping[str, int] = field(default_factory=dict)
    """Counts of a trace's skipped and truncated requests (`traces.Replay.notes`)."""

    def first(self, count: int) -> Workload:
        """The workload reduced to the first `count` requests, all due at once."""
        chosen = self.requests[:count]
        return replace(self, requests=arrivals.at_times(chosen, [0.0] * len(chosen)))


def add_serve(parser: argparse.ArgumentParser) -> None:
    add_requests(parser)
    flags.add_arrivals(parser)


def add_requests(parser: argparse.ArgumentParser) -> None:
    """Add flags for the dataset and its lengths; `requests_of` reads them."""
    _add_dataset(parser)
    _add_lengths(parser)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dataset")
    group.add_argument(
        "--dataset-name",
        choices=("random", "sharegpt", "custom"),
        default="random",
        help="where prompts come from (default: %(default)s)",
    )
    group.add_argument(
        "--dataset-path", metavar="FILE", help="ShareGPT's JSON, or JSONL with `prompt`"
    )
    flags.number(group, "--num-prompts", "how many requests", default=flags.DEFAULT_PROMPTS)
    group.add_argument("--disable-shuffle", action="store_true", help="in the order of the file")
    group.add_argument(
        "--no-oversample",
        action="store_true",
        help="not more requests than the file has, instead of repeating",
    )
    flags.number(group, "--input-len", "as --random-input-len", metavar="TOKENS")
    flags.number(group, "--output-len", "output length, whatever the dataset", metavar="TOKENS")


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("random prompts")
    flags.number(group, "--random-input-len", "length of a prompt", default=1024, metavar="TOKENS")
    flags.number(group, "--random-output-len", "length of an answer", default=128, metavar="TOKENS")
    group.add_argument(
        "--random-range-ratio",
        default="0.0",
        metavar="R",
        help="uniform lengths in [L(1-R), L(1+R)]; a number, or JSON with `input` and `output` "
        "(default: 0)",
    )
    for end in ("input", "output"):
        group.add_argument(
            f"--random-{end}-stddev",
            type=float,
            default=0.0,
            metavar="TOKENS",
            help=f"{end} lengths are normal with this standard deviation, not uniform (default: 0)",
        )
    flags.number(
        group,
        "--random-prefix-len",
        "tokens that all prompts begin with, on top of the input length",
        default=0,
        least=0,
        metavar="TOKENS",
    )
    group = parser.add_argument_group("other datasets")
    flags.number(
        group,
        "--sharegpt-output-len",
        "length of an answer; default: that of the conversation",
        metavar="TOKENS",
    )
    group.add_argument(
        "--custom-output-len",
        type=int,
        default=256,
        metavar="TOKENS",
        help="-1: the file's own (default: 256)",
    )


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="trace: Azure CSV, Mooncake or Bailian JSONL, BurstGPT CSV"
    )
    group = parser.add_argument_group("trace")
    group.add_argument(
        "--trace-format",
        choices=("auto", *traces.FORMATS),
        default="auto",
        help="of FILE; default: by the content",
    )
    group.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="requests are X times as far apart: less is heavier (default: 1)",
    )
    group.add_argument(
        "--start",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="of the window, in the trace's own time",
    )
    group.add_argument(
        "--duration", type=float, metavar="SECONDS", help="of the window; default: to the end"
    )
    flags.number(group, "--num-prompts", "at most, from the start")
    group.add_argument(
        "--length-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="inputs and outputs are X times as long, to fit the context of a small model "
        "(default: 1)",
    )
    for name in ("--max-input-len", "--max-output-len"):
        flags.number(group, name, "longer ones are cut", metavar="TOKENS")
    flags.number(
        group,
        "--max-model-len",
        "input and output together; inputs are cut to fit. Default: what the server says at "
        "/v1/models",
        least=2,
        metavar="TOKENS",
    )


def workload_from_trace(
    parsed: argparse.Namespace, target: Target, maker: PromptMaker, seed: int
) -> Workload:
    """Workload of `bench trace`: the requests of a window, at their recorded times."""
    replayed = _replay(parsed, target, maker, seed)
    last = replayed[len(replayed) - 1].due
    return Workload(
        requests=replayed,
        traffic=Traffic(
            num_prompts=len(replayed),
            # The average rate of the window, since no rate is set.
            request_rate=round(len(replayed) / last, 4) if last else math.inf,
            max_concurrency=parsed.max_concurrency,
        ),
        name=Path(parsed.file).stem,
        axis="time_scale",
        point=parsed.time_scale,
        ignore_eos=True,
        trace=replayed.notes,
    )


def _replay(parsed: argparse.Namespace, target: Target, maker: PromptMaker, seed: int) -> Replay:
    options = ReplayOptions(
        time_scale=parsed.time_scale,
        start=parsed.start,
        duration=parsed.duration,
        num_prompts=parsed.num_prompts,
        length_scale=parsed.length_scale,
        max_input_len=parsed.max_input_len,
        max_output_len=parsed.max_output_len,
        max_model_len=parsed.max_model_len or target.max_model_len,
    )
    return traces.replay(_read(Path(parsed.file), parsed.trace_format), options, maker, seed)


@lru_cache(maxsize=2)
def _read(path: Path, form: str) -> Trace:
    """The trace of a file, read once."""
    return traces.read(path, form)


def workload_from_dataset(
    parsed: argparse.Namespace, target: Target, maker: PromptMaker, seed: int
) -> Workload:
    """Workload of `bench serve`: prompts of a dataset, due by the arrival process."""
    requests = requests_of(parsed, maker, seed, target.chat)
    ramp = _ramp(parsed)
    due = arrivals.due_times(len(requests), parsed.request_rate, parsed.burstiness, seed, ramp)
    axis, point = _axis(parsed)
    return Workload(
        requests=arrivals.at_times(requests, due),
        traffic=Traffic(
            num_prompts=len(requests),
            request_rate=parsed.request_rate,
            burstiness=parsed.burstiness,
            max_concurrency=parsed.max_concurrency,
            ramp_up=_ramp_up(ramp, due) if ramp else None,
        ),
        name=dataset_name(parsed),
        axis=axis,
        point=point,
        ignore_eos=parsed.dataset_name == "random",
    )


def requests_of(
    parsed: argparse.Namespace, maker: PromptMaker, seed: int, chat: bool
) -> Sequence[Request]:
    """The requests of the dataset, all due at once. `chat`: whether the endpoint takes messages."""
    if parsed.dataset_name == "random":
        if parsed.dataset_path is not None:
            warn("--dataset-path is ignored: --dataset-name random reads no file")
        return random_requests(_random_options(parsed), maker, seed)
    if parsed.dataset_path is None:
        raise InvalidValueError(
            "--dataset-path", None, f"a file, with --dataset-name {parsed.dataset_name}"
        )
    sharegpt = parsed.dataset_name == "sharegpt"
    own = parsed.sharegpt_output_len if sharegpt else parsed.custom_output_len
    options = FileOptions(
        path=Path(parsed.dataset_path),
        num_prompts=parsed.num_prompts,
        output_len=parsed.output_len or (None if own == -1 else own),
        shuffle=not parsed.disable_shuffle,
        oversample=not parsed.no_oversample,
    )
    if sharegpt:
        return sharegpt_requests(options, maker, seed)
    return custom_requests(options, maker, seed, chat)


def _random_options(parsed: argparse.Namespace) -> RandomOptions:
    return RandomOptions(
        num_prompts=parsed.num_prompts,
        input_len=parsed.input_len or parsed.random_input_len,
        output_len=parsed.output_len or parsed.random_output_len,
        range_ratio=parse_range_ratio(parsed.random_range_ratio),
        prefix_len=parsed.random_prefix_len,
        input_stddev=parsed.random_input_stddev,
        output_stddev=parsed.random_output_stddev,
    )


def _ramp(parsed: argparse.Namespace) -> arrivals.Ramp | None:
    if parsed.ramp_up_strategy is None:
        return None
    if not math.isinf(parsed.request_rate):
        raise InvalidValueError(
            "--request-rate", parsed.request_rate, "nothing: --ramp-up-strategy decides it"
        )
    for flag, value in (
        ("--ramp-up-start-rps", parsed.ramp_up_start_rps),
        ("--ramp-up-end-rps", parsed.ramp_up_end_rps),
    ):
        if value is None:
            raise InvalidValueError(flag, None, "requests per second, with --ramp-up-strategy")
    return arrivals.Ramp(parsed.ramp_up_strategy, parsed.ramp_up_start_rps, parsed.ramp_up_end_rps)


def _ramp_up(ramp: arrivals.Ramp, due: Sequence[float]) -> RampUp:
    """The ramp for the result file: with the times at which its rate reached each integer."""
    start = int(ramp.start)
    reached = {start: 0.0}
    for rate, moment in zip(ramp.rates(len(due)), due, strict=True):
        for whole in range(max(reached) + 1, int(rate) + 1):
            reached[whole] = moment
    return RampUp(ramp.strategy, start, int(ramp.end), tuple(reached.items()))


def _axis(parsed: argparse.Namespace) -> tuple[str | None, float | None]:
    if not math.isinf(parsed.request_rate):
        return "rate", parsed.request_rate
    if parsed.max_concurrency is not None:
        return "concurrency", float(parsed.max_concurrency)
    return None, None


def dataset_name(parsed: argparse.Namespace) -> str:
    """Name of the workload in reports."""
    if parsed.dataset_name != "random":
        return f"{parsed.dataset_name} {Path(parsed.dataset_path or '').stem}".strip()
    options = _random_options(parsed)
    return f"random {options.input_len}/{options.output_len}"
