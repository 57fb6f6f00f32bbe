"""Due times of requests: the arrival processes of `vllm bench serve` (0.32, `benchmarks/serve.py`).

Inter-arrival times follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, less
is burstier (coefficient of variation 1/sqrt(burstiness)), infinity is even spacing. They are then
scaled so that the last request is due at count/rate, so runs with different seeds offer the same
load. Times of a ramp are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Literal

from penstock.core import InvalidValueError
from penstock_lab.bench.prompts.lazy import LazyRequests
from penstock_lab.bench.request import Request


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that changes from `start` to `end` requests per second over the requests of a run."""

    strategy: Literal["linear", "exponential"]
    start: float
    end: float

    def __post_init__(self) -> None:
        if self.strategy not in ("linear", "exponential"):
            raise InvalidValueError("--ramp-up-strategy", self.strategy, "linear or exponential")
        if not 0 < self.start < math.inf:
            raise InvalidValueError("--ramp-up-start-rps", self.start, "a number above 0")
        if not self.start <= self.end < math.inf:
            raise InvalidValueError(
                "--ramp-up-end-rps", self.end, f"at least the start ({self.start})"
            )

    def rates(self, count: int) -> list[float]:
        """Request rate at each of `count` requests, in requests per second."""
        steps = [index / max(count - 1, 1) for index in range(count)]
        if self.strategy == "linear":
            return [self.start + (self.end - self.start) * step for step in steps]
        return [self.start * (self.end / self.start) ** step for step in steps]


def due_times(
    count: int, rate: float, burstiness: float = 1.0, seed: int = 0, ramp: Ramp | None = None
) -> list[float]:
    """Seconds after the start at which each of `count` requests is due, ascending.

    `rate` is in requests per second; infinity means all at once. It is ignored if there is a
    `ramp`.
    """
    if not rate > 0:
        raise InvalidValueError("--request-rate", rate, "a number above 0, or inf")
    if not burstiness > 0:
        raise InvalidValueError("--burstiness", burstiness, "a number above 0")
    if ramp is not None:
        return _cumulative(ramp.rates(count), burstiness, seed)
    if math.isinf(rate):
        return [0.0] * count
    times = _cumulative([rate] * count, burstiness, seed)
    if not times or times[-1] == 0:
        return times
    stretch = count / rate / times[-1]
    return [time * stretch for time in times]


def _cumulative(rates: Sequence[float], burstiness: float, seed: int) -> list[float]:
    if math.isinf(burstiness):
        return list(accumulate(1 / rate for rate in rates))
    rng = Random(f"arrivals:{seed}")
    return list(accumulate(rng.gammavariate(burstiness, 1 / (rate * burstiness)) for rate in rates))


def at_times(requests: Sequence[Request], due: Sequence[float]) -> Sequence[Request]:
    """`requests` with the due times `due` in seconds. Requests are still built on access."""
    if len(requests) != len(due):
        raise ValueError(f"{len(requests)} requests and {len(due)} due times")
    return LazyRequests(range(len(due)), lambda index: replace(requests[index], due=due[index]))
