"""Statistics of a load by the definitions of vLLM's serving benchmark, with nothing but the
standard library.

Only successful requests enter. Times are seconds. The names are vLLM's:

An event is a part of the output: an SSE record before the first one that has any (the role of a
chat alone) is none.

TTFT   first event - sent
E2EL   last event - sent
ITL    gaps between the events of a request, pooled over requests
TPOT   (E2EL - TTFT) / (output tokens - 1), for requests with more than one output token
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub

from penstock_lab.bench.request import Outcome


def _floats() -> array[float]:
    return array("d")


@dataclass(frozen=True, slots=True)
class Latencies:
    """Pooled latencies of successful requests, in the order of the requests. All but `itl` and
    `tpot` have one value for each request."""

    ttft: array[float] = field(default_factory=_floats)
    tpot: array[float] = field(default_factory=_floats)
    itl: array[float] = field(default_factory=_floats)
    e2el: array[float] = field(default_factory=_floats)
    tpot_or_zero: array[float] = field(default_factory=_floats)
    """As `tpot`, with 0 for a request of at most one token; used by goodput."""
    queue: array[float] = field(default_factory=_floats)
    """sent - due: the wait for a connection under a limit of concurrency, else the client's
    lateness.
    """


@dataclass(frozen=True, slots=True)
class Summary:
    mean: float
    median: float
    std: float
    """Standard deviation of the population."""
    percentiles: tuple[float, ...]
    """Values in the requested order."""


@dataclass(frozen=True, slots=True)
class Peaks:
    output_tokens_per_s: float
    concurrent_requests: int


def ttft(outcome: Outcome) -> float:
    """0 without an event."""
    return outcome.events[0] - outcome.sent if outcome.events else 0.0


def e2el(outcome: Outcome) -> float:
    """0 without an event."""
    return outcome.events[-1] - outcome.sent if outcome.events else 0.0


def gaps(outcome: Outcome) -> array[float]:
    """Times between the events: one fewer than events."""
    return array("d", map(sub, outcome.events[1:], outcome.events))


def tpot(outcome: Outcome) -> float | None:
    """None with at most one output token."""
    if outcome.output_tokens < 2:
        return None
    return (e2el(outcome) - ttft(outcome)) / (outcome.output_tokens - 1)


def latencies(outcomes: Iterable[Outcome]) -> Latencies:
    """Latencies of the successful ones among `outcomes`."""
    pooled = Latencies()
    for outcome in outcomes:
        if not outcome.success:
            continue
        pooled.ttft.append(ttft(outcome))
        pooled.e2el.append(e2el(outcome))
        pooled.itl.extend(gaps(outcome))
        pooled.queue.append(outcome.sent - outcome.due)
        per_token = tpot(outcome)
        pooled.tpot_or_zero.append(per_token or 0.0)
        if per_token is not None:
            pooled.tpot.append(per_token)
    return pooled


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between the neighbours, the default of `numpy.percentile`, with its
    rounding.

    `ordered` ascends; 0 when it is empty. `percent` is in 0..100.
    """
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * (percent / 100)
    low = math.floor(position)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    share = position - low
    # From the nearer end, so that the result never leaves [below, above].
    if share >= 0.5:
        return above - (above - below) * (1 - share)
    return below + (above - below) * share


def summarise(values: Sequence[float], percents: Sequence[float]) -> Summary:
    """All 0 when there are no values, as vLLM has it."""
    if not values:
        return Summary(0.0, 0.0, 0.0, (0.0,) * len(percents))
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum([(value - mean) ** 2 for value in ordered]) / len(ordered)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Summary(
        mean,
        median,
        math.sqrt(variance),
        tuple(percentile(ordered, percent) for percent in percents),
    )


def good_requests(pooled: Latencies, limits: Mapping[str, float]) -> int:
    """How many requests kept all of `limits`: seconds for ttft, tpot and e2el, a limit itself being
    good.
    """
    columns = {"ttft": pooled.ttft, "tpot": pooled.tpot_or_zero, "e2el": pooled.e2el}
    checked = [(columns[name], limit) for name, limit in limits.items()]
    return sum(
        all(column[index] <= limit for column, limit in checked)
        for index in range(len(pooled.ttft))
    )


def peaks(outcomes: Iterable[Outcome]) -> Peaks:
    """The fullest second: vLLM's rule.

    Seconds count from the first sending of a successful request. Each event is one token of the
    second it falls in; a request is present in every second from its sending to its last event,
    both included.
    """
    successful = [outcome for outcome in outcomes if outcome.success]
    if not successful:
        return Peaks(0.0, 0)
    origin = min(outcome.sent for outcome in successful)
    tokens: Counter[int] = Counter()
    changes: Counter[int] = Counter()
    for outcome in successful:
        tokens.update([int(moment - origin) for moment in outcome.events])
        changes[int(outcome.sent - origin)] += 1
        changes[int(outcome.sent + e2el(outcome) - origin) + 1] -= 1
    present = accumulate(changes[second] for second in sorted(changes))
    return Peaks(float(max(tokens.values(), default=0)), max(present))
