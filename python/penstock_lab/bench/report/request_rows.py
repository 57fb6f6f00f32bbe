"""Single requests of a run, from the arrays that `--save-detailed` writes. Penstock's and vLLM's
formats are supported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock_lab.bench.report.files import mapping, number, sequence
from penstock_lab.bench.report.wording import clean

NAN = math.nan


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. Times are seconds after the start of the load; NaN if absent or unknown."""

    due: float
    sent: float
    first: float
    last: float
    """Arrival time of the last event, an event being a piece of the output."""
    ended: float
    gaps: tuple[float, ...]
    output_tokens: int
    failure: str
    """Reason of the failure; empty for none."""

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    @property
    def e2el(self) -> float:
        return self.last - self.sent

    @property
    def tpot(self) -> float:
        """Time per output token; NaN with at most one output token."""
        return (
            (self.last - self.first) / (self.output_tokens - 1) if self.output_tokens > 1 else NAN
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """One of the four latencies: its key in result files, its names, and a function that computes
    its values in seconds from a request.
    """

    key: str
    name: str
    long: str
    values: Callable[[RequestRow], Iterable[float]]


LATENCIES = (
    Latency("ttft", "TTFT", "Time to first token", lambda request: (request.ttft,)),
    Latency(
        "tpot", "TPOT", "Time per output token after the first", lambda request: (request.tpot,)
    ),
    Latency(
        "itl", "ITL", "Inter-token latency, gaps pooled over requests", lambda request: request.gaps
    ),
    Latency("e2el", "E2EL", "End-to-end latency", lambda request: (request.e2el,)),
)


def pooled(requests: Iterable[RequestRow], latency: Latency) -> list[float]:
    """The values of a latency in all successful requests, in milliseconds, ascending."""
    values = (
        value for request in requests if not request.failure for value in latency.values(request)
    )
    return sorted(value * 1000 for value in values if math.isfinite(value) and value >= 0)


def unfold(result: Mapping[str, Any]) -> list[RequestRow] | None:
    """The requests of a result; None if it has no arrays, or arrays of different lengths."""
    ttfts, gaps = result.get("ttfts"), result.get("itls")
    if (
        not isinstance(ttfts, list)
        or not isinstance(gaps, list)
        or not ttfts
        or len(ttfts) != len(gaps)
    ):
        return None
    detail = mapping(mapping(result.get("penstock")).get("detail"))
    total = len(ttfts)
    starts = _column(detail.get("sent") or result.get("start_times"), total)
    waits = _column(result.get("queue_times"), total)
    due = [start - (wait if wait > 0 else 0) for start, wait in zip(starts, waits, strict=True)]
    due = _column(detail["due"], total) if "due" in detail else due
    if "sent" not in detail:  # vLLM's clock has an arbitrary origin.
        origin = min((time for time in [*due, *starts] if math.isfinite(time)), default=0.0)
        due, starts = [time - origin for time in due], [time - origin for time in starts]
    ended = _column(detail.get("ended"), total)
    tokens = _column(result.get("output_lens"), total)
    failures = _failures(detail.get("failure") or result.get("errors"), total)
    rows = zip(due, starts, map(_seconds, ttfts), gaps, ended, tokens, failures, strict=True)
    return [_trip(*row) for row in rows]


def _trip(
    due: float, sent: float, ttft: float, gaps: object, ended: float, tokens: float, failure: str
) -> RequestRow:
    between = tuple(_seconds(gap) for gap in sequence(gaps))
    began = ttft > 0 or bool(between)
    first = sent + ttft if began else NAN
    last = first + math.fsum(between)
    return RequestRow(
        due=due if math.isfinite(due) else sent,
        sent=sent,
        first=first,
        last=last,
        ended=ended if math.isfinite(ended) else last,
        gaps=between,
        output_tokens=int(tokens) if math.isfinite(tokens) else 0,
        failure=failure or ("" if began else "no event"),
    )


def _seconds(value: object) -> float:
    found = number(value)
    return NAN if found is None else found


def _column(values: object, total: int) -> list[float]:
    """`total` numbers, NaN where `values` has none. All are NaN if `values` is missing or has
    another length.
    """
    found = sequence(values)
    return [_seconds(value) for value in found] if len(found) == total else [NAN] * total


def _failures(values: object, total: int) -> list[str]:
    found = sequence(values)
    if len(found) != total:
        return [""] * total
    return [clean(str(value))[:300] if value else "" for value in found]
