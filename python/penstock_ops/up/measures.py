"""Measurements of a run of a plan's load: the client's statistics, and the growth of the server's
own counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock_ops.top.exposition import Page

QUEUE = "vllm:request_queue_time_seconds"
STEPS = "penstock:engine_step_seconds"
PREEMPTIONS = "vllm:num_preemptions_total"


@dataclass(frozen=True, slots=True)
class Measures:
    """Measured values of a run. None: not measured, for example if the server lacks the metric."""

    node: str
    start_seconds: float | None
    """Seconds from the start of the process until the server was ready; None if it never was."""
    failure: str = ""
    """Why the server never became ready."""
    completed: int = 0
    """Requests that succeeded."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Requests that failed, by kind."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Latencies in milliseconds by name, such as p99_tpot_ms."""
    output_tokens_per_s: float | None = None
    waiting: float | None = None
    """Average number of requests in the server's queue during the run."""
    preemptions: float | None = None
    step_seconds: float | None = None
    """Average duration of an engine step."""
    foreign_share: float | None = None
    """Share of the machine's processor time that other programs used (0 to 1)."""
    foreign_node: str = ""
    """Where they used it; empty for `node`."""


def measures_of(
    node: str,
    start_seconds: float,
    result: Mapping[str, Any],
    before: Page,
    after: Page,
    foreign: tuple[str, float] | None,
) -> Measures:
    """Measures from a benchmark's result and the server's metrics before and after it. `foreign` is
    the node with the largest share of other programs.
    """
    queued = growth(f"{QUEUE}_sum", before, after)
    steps = growth(f"{STEPS}_count", before, after)
    seconds = growth(f"{STEPS}_sum", before, after)
    completed = int(result["completed"])
    return Measures(
        node,
        start_seconds,
        completed=completed,
        failed=result["penstock"]["failures"],
        statistics=statistics_of(result),
        output_tokens_per_s=float(result["output_throughput"]) if completed else None,
        # Little's law: the seconds that all requests waited, over the seconds of the run.
        waiting=None if queued is None else queued / max(float(result["duration"]), 1e-9),
        preemptions=growth(PREEMPTIONS, before, after),
        step_seconds=seconds / steps if steps and seconds is not None else None,
        foreign_share=foreign[1] if foreign else None,
        foreign_node=foreign[0] if foreign else "",
    )


def statistics_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The latencies of a result. Latencies without a value (0 in a result) are omitted."""
    return {
        key: float(value)
        for key, value in result.items()
        if key.endswith("_ms") and isinstance(value, int | float) and value > 0
    }


def growth(name: str, before: Page, after: Page) -> float | None:
    """Growth of a counter; None if the server does not have it. A restart has reset a counter that
    fell, which then counts from 0.
    """
    end = after.total(name)
    if end is None:
        return None
    begin = before.total(name) or 0.0
    return end - begin if end >= begin else end
