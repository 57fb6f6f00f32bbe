"""The cause of latencies or a throughput that miss the plan. Causes of slow steps precede causes of
waiting. The plan's own model is the cause only if hardware and engine perform as it assumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_ops.up.measures import Measures
from penstock_ops.up.predictions import Plan, bounds, predicted, waiting
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.verdict import CAUSES_FIRST

SPEED = (
    "throttling", "memory-rate", "nvlink", "pcie", "copy-rate", "cpu-quota", "frequency",
)  # fmt: skip
"""Checks of `penstock verify` whose failure, or warning, explains slower steps."""
BUSY = 0.1
"""Share of the processors' time (0 to 1) that other programs may use."""
CALIBRATE = (
    "penstock up --calibrate FILE, then penstock plan --calibrate FILE, which plans with the "
    "measurement"
)


@dataclass(frozen=True, slots=True)
class Cause:
    layer: Layer
    text: str
    remedy: str


def cause_of(plan: Plan, findings: Sequence[Finding], measures: Measures) -> Cause:
    """Why a run misses the plan. One cause holds for all its statistics, because slow steps also
    delay first tokens.
    """
    return (
        _hardware(findings)
        or _preemptions(measures)
        or _other_programs(plan, measures)
        or _steps(plan, measures)
        or _queue(plan, measures)
        or Cause(
            Layer.ENGINE,
            "decodes are as planned, and few requests wait: prompts, or the API server, are slow",
            "compare vllm:request_prefill_time_seconds of the server's metrics with the plan; "
            "smaller steps (penstock plan --max-num-batched-tokens)",
        )
    )


def _hardware(findings: Sequence[Finding]) -> Cause | None:
    """The first finding of `penstock verify` that explains slow steps."""
    slowing = [
        each
        for each in findings
        if each.check in SPEED and each.status in (Status.WARN, Status.FAIL)
    ]
    if not slowing:
        return None
    first = min(slowing, key=lambda each: CAUSES_FIRST.index(each.layer))
    return Cause(first.layer, f"{first.check} of {first.node}: {first.summary}", first.remedy)


def _preemptions(measures: Measures) -> Cause | None:
    if not measures.preemptions:
        return None
    return Cause(
        Layer.MEMORY,
        f"the KV memory was full: {measures.preemptions:,.0f} sequences were computed again",
        "a plan for the actual lengths (penstock plan --isl, --osl), fewer sequences "
        "(--max-num-seqs), or fp8 KV",
    )


def _other_programs(plan: Plan, measures: Measures) -> Cause | None:
    if plan["target"]["resource"] or (measures.foreign_share or 0.0) <= BUSY:
        return None
    return Cause(
        Layer.HOST,
        f"other programs used {measures.foreign_share:.0%} of the processors of "
        f"{measures.foreign_node or measures.node}",
        "stop them, or give the server processors of its own (taskset, cpuset)",
    )


def _steps(plan: Plan, measures: Measures) -> Cause | None:
    """None if no TPOT misses its bound."""
    if not is_slow(plan, measures):
        return None
    token = measures.statistics.get("mean_tpot_ms")
    planned = predicted(plan, "median_tpot_ms")
    if token is None or planned is None or measures.step_seconds is None:
        return Cause(
            Layer.ENGINE,
            "the hardware performs as expected: the engine is slower than planned, or the plan's "
            "model of its steps is too fast",
            f"compare its version and flags with the plan's; {CALIBRATE}",
        )
    step = measures.step_seconds * 1e3
    if token - step > (token - planned.mid) / 2:
        return Cause(
            Layer.ENGINE,
            f"{token - step:.4g} of {token:.4g} ms between tokens pass outside the engine's steps",
            "give the API server processors of its own; look at the engine's log",
        )
    return Cause(
        Layer.MODEL,
        f"an engine step takes {step:.4g} ms, and the plan counts on {planned.mid:.4g} ms a token",
        CALIBRATE,
    )


def is_slow(plan: Plan, measures: Measures) -> bool:
    """Whether a TPOT misses its limit or its band."""
    return any(
        bound.status(measures.statistics[key]) is not Status.PASS
        for key, bound in bounds(plan, "tpot")
        if key in measures.statistics
    )


def _queue(plan: Plan, measures: Measures) -> Cause | None:
    bound = waiting(plan)
    if measures.waiting is None or bound.status(measures.waiting) is Status.PASS:
        return None
    return Cause(
        Layer.LOAD,
        f"{measures.waiting:.4g} requests wait on average, and steps take their planned time",
        "another replica, or a plan for this rate (penstock plan --rate)",
    )
