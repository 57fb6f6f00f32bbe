"""Plan of a sweep: workloads, loads, rounds and the seed of each run."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core import InvalidValueError
from penstock_lab.bench import lists
from penstock_lab.bench.slo import Slo, parse_slo

FEWEST_REQUESTS = 10
REQUESTS_PER_PLACE = 3
"""Number of requests at a point, for each unit of concurrency. With fewer, too many of them would
run while the server fills up or becomes empty.
"""
SECONDS_OF_ARRIVALS = 30
"""Seconds during which requests arrive at one point of a sweep over request rates."""
PERCENTILES = ("50", "90", "99")
METRICS = "ttft,tpot,itl,e2el"


@dataclass(frozen=True, slots=True)
class Lengths:
    """One workload of a sweep: mean and standard deviation of input and output lengths, in
    tokens.
    """

    input: int
    output: int
    input_deviation: float = 0.0
    output_deviation: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.input}/{self.output}"

    def words(self) -> list[str]:
        """Arguments for `bench serve`."""
        return [
            *("--dataset-name", "random"),
            *("--random-input-len", str(self.input)),
            *("--random-output-len", str(self.output)),
            *("--random-input-stddev", str(self.input_deviation)),
            *("--random-output-stddev", str(self.output_deviation)),
        ]


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a sweep. `load` is a number of concurrent requests, or of requests per second."""

    axis: str
    """`concurrency` or `rate`."""
    load: float
    requests: int

    def words(self) -> list[str]:
        """Arguments for `bench serve`."""
        limit = (
            ["--max-concurrency", f"{self.load:.0f}"]
            if self.axis == "concurrency"
            else ["--request-rate", repr(self.load)]
        )
        return [*limit, "--num-prompts", str(self.requests)]


@dataclass(frozen=True, slots=True)
class Plan:
    """Every workload at every point in every round. Each run has its own seed, so that no prompt is
    already in the server's prefix cache.
    """

    workloads: Sequence[Lengths]
    points: Sequence[Point]
    rounds: int
    seed: int
    slos: Sequence[Slo]
    warmups: int

    def seed_of(self, workload: int, point: int, repeat: int) -> int:
        """Seed of one run, different for each workload, point and round (`repeat`, from 0)."""
        return self.seed + (workload * len(self.points) + point) * self.rounds + repeat

    def percentiles(self) -> str:
        """Percentiles that tables and SLOs need, as --metric-percentiles expects them."""
        wanted = {slo.percentile for slo in self.slos if slo.percentile is not None}
        return ",".join(sorted(wanted.union(PERCENTILES), key=float))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `plan` reads, including GenAI-Perf's aliases."""
    loads = parser.add_argument_group("points").add_mutually_exclusive_group(required=True)
    loads.add_argument("--concurrency", metavar="LIST", help=f"concurrent requests: {lists.FORMS}")
    loads.add_argument(
        "--request-rate", metavar="LIST", help="requests a second, likewise; `inf` is all at once"
    )
    lengths = parser.add_argument_group("workloads")
    lengths.add_argument(
        *("--isl", "--synthetic-input-tokens-mean"),
        metavar="LIST",
        help="input lengths in tokens, such as 200,1000",
    )
    lengths.add_argument(
        *("--osl", "--output-tokens-mean"),
        metavar="LIST",
        help="output lengths, as many as of --isl, or one for all",
    )
    lengths.add_argument(
        "--pair",
        metavar="INPUT/OUTPUT",
        action="append",
        default=[],
        help="a workload (repeat for more)",
    )
    lengths.add_argument(
        *("--isl-stddev", "--synthetic-input-tokens-stddev"),
        type=float,
        default=0.0,
        metavar="TOKENS",
        help="standard deviation of normal input lengths (default: 0)",
    )
    lengths.add_argument(
        *("--osl-stddev", "--output-tokens-stddev"),
        type=float,
        default=0.0,
        metavar="TOKENS",
        help="standard deviation of normal output lengths (default: 0)",
    )
    _add_runs(parser.add_argument_group("runs"))
    parser.add_argument(
        "--extra-inputs",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="a field of every body, as with GenAI-Perf; or a JSON object (repeat for more)",
    )


def _add_runs(runs: argparse._ArgumentGroup) -> None:
    runs.add_argument(
        *("--requests-per-point", "--request-count"),
        type=int,
        metavar="N",
        help=f"length of a run; default: {REQUESTS_PER_PLACE} for each concurrent request, or "
        f"{SECONDS_OF_ARRIVALS} s of arrivals; at least {FEWEST_REQUESTS}",
    )
    runs.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="runs of each point, each with a new seed",
    )
    runs.add_argument(
        *("--warmup-requests", "--warmup-request-count"),
        type=int,
        default=5,
        metavar="N",
        help="requests before each workload that do not count (default: 5)",
    )
    runs.add_argument(
        "--slo",
        metavar="STATISTIC:MS",
        action="append",
        default=[],
        help="a limit such as p99_ttft_ms:2000; a workload ends with the first beyond (repeat for "
        "more)",
    )


def plan(parsed: argparse.Namespace) -> Plan:
    """The plan given by flags. Raises InvalidValueError for impossible ones."""
    for flag, value, least in (
        ("--rounds", parsed.rounds, 1),
        ("--warmup-requests", parsed.warmup_requests, 0),
        ("--isl-stddev", parsed.isl_stddev, 0),
        ("--osl-stddev", parsed.osl_stddev, 0),
        ("--requests-per-point", parsed.requests_per_point or 1, 1),
    ):
        if value < least:
            raise InvalidValueError(flag, value, f"at least {least}")
    return Plan(
        _workloads(parsed),
        _points(parsed),
        rounds=parsed.rounds,
        seed=parsed.seed,
        slos=[parse_slo("--slo", text) for text in parsed.slo],
        warmups=parsed.warmup_requests,
    )


def _workloads(parsed: argparse.Namespace) -> list[Lengths]:
    pairs = [lists.parse_pair("--pair", text) for text in parsed.pair]
    if parsed.isl or parsed.osl:
        pairs += _crossed(parsed.isl, parsed.osl)
    if not pairs:
        raise InvalidValueError(
            "--isl", None, "input and output lengths: --isl 200 --osl 200, or --pair 200/200"
        )
    return [Lengths(*pair, parsed.isl_stddev, parsed.osl_stddev) for pair in dict.fromkeys(pairs)]


def _crossed(isl: str | None, osl: str | None) -> list[tuple[int, int]]:
    if not isl or not osl:
        missing = "--osl" if isl else "--isl"
        raise InvalidValueError(
            missing, None, "a length for each of the other list, or one for all"
        )
    inputs, outputs = _lengths("--isl", isl), _lengths("--osl", osl)
    many = max(len(inputs), len(outputs))
    inputs, outputs = (
        values * many if len(values) == 1 else values for values in (inputs, outputs)
    )
    if len(inputs) != len(outputs):
        raise InvalidValueError("--osl", osl, f"one length, or {len(inputs)} as --isl has")
    return list(zip(inputs, outputs, strict=True))


def _lengths(flag: str, text: str) -> list[int]:
    # Parse word by word, because `parse_counts` removes duplicates and lengths may repeat.
    return [value for word in text.split(",") for value in lists.parse_counts(flag, word)]


def _points(parsed: argparse.Namespace) -> list[Point]:
    asked = parsed.requests_per_point
    if parsed.concurrency:
        counts = lists.parse_counts("--concurrency", parsed.concurrency)
        return [
            Point("concurrency", count, asked or max(FEWEST_REQUESTS, REQUESTS_PER_PLACE * count))
            for count in counts
        ]
    rates = lists.parse_rates("--request-rate", parsed.request_rate)
    return [Point("rate", rate, asked or _arrivals(rate)) for rate in rates]


def _arrivals(rate: float) -> int:
    if math.isinf(rate):
        raise InvalidValueError(
            "--request-rate", rate, "a finite rate, or --requests-per-point with it"
        )
    return max(FEWEST_REQUESTS, math.ceil(SECONDS_OF_ARRIVALS * rate))


def extra_inputs(flag: str, texts: Sequence[str]) -> dict[str, object]:
    """Body fields from GenAI-Perf's `NAME:VALUE` or from JSON objects. A VALUE is read as JSON if
    possible, else as text.
    """
    fields: dict[str, object] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            fields |= _object(flag, text)
            continue
        name, colon, value = text.partition(":")
        if not name or not colon:
            raise InvalidValueError(flag, text, "NAME:VALUE or a JSON object")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def _object(flag: str, text: str) -> Mapping[str, object]:
    try:
        fields: Mapping[str, object] = json.loads(text)
    except ValueError as error:
        raise InvalidValueError(flag, text, f"NAME:VALUE or a JSON object ({error})") from None
    return fields
