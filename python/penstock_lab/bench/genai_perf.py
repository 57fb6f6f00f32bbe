"""The metrics of GenAI-Perf's table, and the load divided into time windows.

Definitions: docs/README.md of NVIDIA's GenAI-Perf, "Metrics". Its inter-token latency is TPOT here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock_lab.bench import stats
from penstock_lab.bench.request import Outcome

PERCENTS = (99.0, 90.0, 75.0)
COLUMNS = ("avg", "min", "max", "p99", "p90", "p75")
MOST_WINDOWS = 10_000

Row = dict[str, float]


def second_token(outcome: Outcome) -> float | None:
    """Time in seconds from the first event to the second; None with fewer."""
    return outcome.events[1] - outcome.events[0] if len(outcome.events) > 1 else None


def user_rate(outcome: Outcome) -> float | None:
    """Output tokens per second seen by the user of this request after the first token: 1 / TPOT.
    None with at most one token, or if all tokens arrived at once.
    """
    per_token = stats.tpot(outcome)
    return 1 / per_token if per_token else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


METRICS: Mapping[str, tuple[str, Callable[[Outcome], float | None]]] = {
    "time_to_first_token_ms": ("Time to first token (ms)", lambda o: _ms(stats.ttft(o))),
    "time_to_second_token_ms": ("Time to second token (ms)", lambda o: _ms(second_token(o))),
    "request_latency_ms": ("Request latency (ms)", lambda o: _ms(stats.e2el(o))),
    "inter_token_latency_ms": ("Inter-token latency (ms)", lambda o: _ms(stats.tpot(o))),
    "output_token_throughput_per_user": ("Output tokens/s/user", user_rate),
    "output_sequence_length": ("Output sequence length", lambda o: float(o.output_tokens)),
    "input_sequence_length": ("Input sequence length", lambda o: float(o.input_tokens)),
}
"""For each metric, its title and its value for one request; None if the request has no such
value.
"""


def table(outcomes: Sequence[Outcome]) -> dict[str, Row]:
    """Average, minimum, maximum and percentiles of each metric over the successful requests.
    Metrics without any value are left out.
    """
    successful = [outcome for outcome in outcomes if outcome.success]
    found = {}
    for name, (_, of) in METRICS.items():
        values = [value for outcome in successful if (value := of(outcome)) is not None]
        if values:
            found[name] = _row(values)
    return found


def _row(values: Sequence[float]) -> Row:
    summary = stats.summarise(values, PERCENTS)
    numbers = (summary.mean, min(values), max(values), *summary.percentiles)
    return dict(zip(COLUMNS, numbers, strict=True))


def windows(outcomes: Sequence[Outcome], width: float, duration: float) -> list[dict[str, Any]]:
    """The load in consecutive windows of `width` seconds from its start; the last one ends with the
    load, after `duration` seconds. Widths that would give more than MOST_WINDOWS are doubled.

    A request counts in the window in which it ended. Its tokens count in the windows in which they
    arrived, spread evenly over its events. Rates are per second of the window.
    """
    successful = [outcome for outcome in outcomes if outcome.success and outcome.events]
    while duration / width > MOST_WINDOWS:
        width *= 2
    count = max(1, math.ceil(duration / width))
    ended: list[list[Outcome]] = [[] for _ in range(count)]
    tokens = [0.0] * count
    for outcome in successful:
        ended[_index(outcome.events[-1], width, count)].append(outcome)
        each = outcome.output_tokens / len(outcome.events)
        for moment in outcome.events:
            tokens[_index(moment, width, count)] += each
    return [
        _window(at * width, min((at + 1) * width, duration), ended[at], tokens[at])
        for at in range(count)
    ]


def _index(moment: float, width: float, count: int) -> int:
    return min(max(int(moment / width), 0), count - 1)


def _window(start: float, end: float, ended: Sequence[Outcome], tokens: float) -> dict[str, Any]:
    seconds = end - start or math.inf
    return {
        "start_s": start,
        "end_s": end,
        "completed": len(ended),
        "request_throughput": len(ended) / seconds,
        "output_throughput": tokens / seconds,
        "metrics": table(ended),
    }
