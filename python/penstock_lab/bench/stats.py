"""Statistics of a load, as defined by vLLM's serving benchmark, using only the standard library.

Only successful requests count. Times are in seconds. An event is a part of the output; SSE records
before the first output (such as a chat role alone) are not events. The names are vLLM's:

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
    """Latencies of all successful requests in seconds, in request order. Each array has one value
    for each request, except `itl` (one for each gap) and `tpot` (requests with several tokens).
    """

    ttft: array[float] = field(default_factory=_floats)
    tpot: array[float] = field(default_factory=_floats)
    itl: array[float] = field(default_factory=_floats)
    e2el: array[float] = field(default_factory=_floats)
    tpot_or_zero: array[float] = field(default_factory=_floats)
    """As `tpot`, but with 0 for a request with at most one output token; used for goodput."""
    queue: array[float] = field(default_factory=_floats)
    """`sent - due` in seconds: with a concurrency limit, the wait for a free connection; without
    one, the lateness of the client.
    """


@dataclass(frozen=True, slots=True)
class Summary:
    mean: float
    median: float
    std: float
    """Population standard deviation."""
    percentiles: tuple[float, ...]
    """Values in the requested order."""


@dataclass(frozen=True, slots=True)
class Peaks:
    output_tokens_per_s: float
    concurrent_requests: int


def ttft(outcome: Outcome) -> float:
    """Time to first token in seconds; 0 without an event."""
    return outcome.events[0] - outcome.sent if outcome.events else 0.0


def e2el(outcome: Outcome) -> float:
    """End-to-end latency in seconds; 0 without an event."""
    return outcome.events[-1] - outcome.sent if outcome.events else 0.0


def gaps(outcome: Outcome) -> array[float]:
    """Times between consecutive events: one fewer than events."""
    return array("d", map(sub, outcome.events[1:], outcome.events))


def tpot(outcome: Outcome) -> float | None:
    """Time per output token in seconds; None with at most one output token."""
    if outcome.output_tokens < 2:
        return None
    return (e2el(outcome) - ttft(outcome)) / (outcome.output_tokens - 1)


def latencies(outcomes: Iterable[Outcome]) -> Latencies:
    """Latencies of the successful outcomes."""
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
    """Percentile by linear interpolation. The result equals the default of `numpy.percentile`,
    including its rounding.

    `ordered` must ascend; the result is 0 if it is empty. `percent` is in 0..100.
    """
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * (percent / 100)
    low = math.floor(position)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    share = position - low
    # Interpolate from the nearer end, so that rounding never leaves [below, above].
    if share >= 0.5:
        return above - (above - below) * (1 - share)
    return below + (above - below) * share


def summarise(values: Sequence[float], percents: Sequence[float]) -> Summary:
    """Summary of values; all 0 without values, as in vLLM."""
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
    """Number of requests whose latencies are at most those in `limits`, which has seconds by name:
    ttft, tpot, e2el.
    """
    columns = {"ttft": pooled.ttft, "tpot": pooled.tpot_or_zero, "e2el": pooled.e2el}
    checked = [(columns[name], limit) for name, limit in limits.items()]
    return sum(
        all(column[index] <= limit for column, limit in checked)
        for index in range(len(pooled.ttft))
    )


def peaks(outcomes: Iterable[Outcome]) -> Peaks:
    """The most output tokens, and the most concurrent requests, in any second; computed as in vLLM.

    Seconds are counted from the first send of a successful request. Each event counts as one token
    of its second. A request counts in every second from its send to its last event, inclusive.
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
