"""The minimum hardware performance at which a plan's predictions hold, for checks before and during
serving. Also the load at which another replica is needed.

`expected` is the value that the plan assumes. Below `needed`, the plan's bound on TPOT is missed:
this value alone then uses up the margin between the prediction and the bound.
"""

from __future__ import annotations

from typing import Any

from penstock_ops.plan.hardware import Target
from penstock_ops.plan.search import Goal, Speed, Trial, statistic
from penstock_ops.plan.speed import StepModel
from penstock_ops.plan.subject import Subject

FIRST_TOKEN_SECONDS = 1.0
"""Acceptable queue time in seconds, if the plan has no bound on TTFT."""
LEAST_KV, MOST_KV = 0.5, 0.95
"""Minimum and maximum of the threshold for KV use (0 to 1), above which another replica is
needed.
"""


def thresholds(
    trial: Trial, subject: Subject, target: Target, goal: Goal, speed: Speed
) -> dict[str, Any]:
    """For each check by name: the needed and the expected value, and the formula; of an all-reduce
    also its size in bytes.
    """
    candidate = trial.candidate
    found = _load(trial, goal)
    if isinstance(candidate.model, StepModel):
        found |= _step(trial, candidate.model, subject, target, goal, speed)
    return found


def _step(
    trial: Trial,
    model: StepModel,
    subject: Subject,
    target: Target,
    goal: Goal,
    speed: Speed,
) -> dict[str, Any]:
    candidate, device, constants = trial.candidate, target.accelerator, speed.constants
    batch, context = operating_point(trial, goal)
    batch /= candidate.cut.pp
    stage = max(model.stages, key=lambda stage: stage.always + stage.experts)
    step = model.stage(stage, batch, context, 0.0)
    spare = step * (_slack(trial, goal) - 1.0)
    read = model.bytes_read(stage, batch, context)
    seconds = read / (device.bandwidth * constants.memory)
    found: dict[str, Any] = {
        "memory_gb_per_s": {
            "needed": round(read / (seconds + spare) / 1e9, 1),
            "expected": round(read / seconds / 1e9, 1),
            "formula": f"{read / 1e9:.3f} GB read in a step of {batch:.1f} sequences / "
            f"({seconds * 1e3:.2f} ms + {spare * 1e3:.2f} ms spare)",
        }
    }
    if candidate.cut.tp > 1:
        sums = 2 * stage.layers
        each = model.all_reduce(batch)
        size = round(batch * subject.spec.hidden * 2)
        found["all_reduce_us"] = {
            "needed": round((each + spare / sums) * 1e6, 1),
            "expected": round(each * 1e6, 1),
            "bytes": size,
            "formula": f"{size / 1e3:.1f} KB, {sums} in a step, {spare * 1e3:.2f} ms spare",
        }
    return found


def _load(trial: Trial, goal: Goal) -> dict[str, Any]:
    """Thresholds for the load of a replica. If the average is above `needed`, another replica is
    needed.
    """
    rate = goal.rate / trial.replicas
    bounds = [slo.limit / 1e3 for slo in goal.slo if "ttft" in slo.key]
    seconds = min(bounds, default=FIRST_TOKEN_SECONDS)
    why = "the bound on TTFT" if bounds else "without a bound on TTFT"
    tokens = trial.candidate.memory.kv_tokens
    share = 1.0 - goal.longest / max(tokens, 1)
    return {
        "requests_waiting": {
            "needed": max(round(rate * seconds), 1),
            "expected": 0,
            "formula": f"{rate:.3g} requests/s at a replica x {seconds:g} s, {why}; at least 1",
        },
        "kv_use": {
            "needed": round(min(max(share, LEAST_KV), MOST_KV), 3),
            "expected": round(_seen(trial, goal) / max(tokens, 1), 3),
            "formula": f"1 - {goal.longest:,} tokens of the longest request / {tokens:,}; "
            f"{LEAST_KV:g} to {MOST_KV:g}",
        },
    }


def _seen(trial: Trial, goal: Goal) -> float:
    """Average number of tokens in a replica's KV memory while it decodes."""
    batch, context = operating_point(trial, goal)
    return batch * context


def operating_point(trial: Trial, goal: Goal) -> tuple[float, float]:
    """Average number of sequences that decode at once (but at least 1), and average number of
    tokens that each attends to, in the simulation.
    """
    outcome = trial.outcome
    decoding = sum(each.end - each.first for each in outcome.served)
    seen = sum(arrival.isl + arrival.osl / 2 for arrival in goal.arrivals) / len(goal.arrivals)
    return max(decoding / outcome.busy, 1.0), seen


def _slack(trial: Trial, goal: Goal) -> float:
    """Smallest ratio of a TPOT bound to its predicted value, but at least 1; 2 without a bound."""
    bounds = [slo for slo in goal.slo if "tpot" in slo.key]
    ratios = [slo.limit / max(statistic(trial.outcome, slo.key), 1e-9) for slo in bounds]
    return max(min(ratios, default=2.0), 1.0)
