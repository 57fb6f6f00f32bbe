"""Predictions of a plan with their band, and its limits, as bounds of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.config.forms import count, members, number, rows, text
from penstock_lab.bench import planned
from penstock_ops.verify.finding import Bound

METRICS = ("tpot", "itl", "ttft", "e2el")
FORM = members(
    {
        "model": members({"parameters": count(1)}),
        "bench": members({"slo": rows(text())}),
        "predictions": members(
            {"band": members({"low": number(), "high": number()})},
            {"output_tokens_per_s": number()},
        ),
        "start": members({"weights": members({"host_path": members({"seconds": count(1)})})}),
        "thresholds": members({"requests_waiting": members({"needed": number()})}),
    }
)
"""The members of a plan that this file reads, besides those that `bench plan` checks."""

Plan = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Predicted:
    """A predicted latency in milliseconds: the ends of its band, and its middle."""

    low: float
    mid: float
    high: float


def predicted(plan: Plan, key: str) -> Predicted | None:
    """The prediction of a statistic; None if the plan has none, or only a lower bound."""
    found = plan["predictions"].get(key)
    if not isinstance(found, dict) or "mid" not in found:
        return None
    return Predicted(float(found["low"]), float(found["mid"]), float(found["high"]))


def limits(plan: Plan) -> dict[str, float]:
    """Upper limits in milliseconds by statistic. For a plan without limits, the limits are the
    high ends of the bands of the medians.
    """
    given = {slo.key: slo.limit for slo in planned.bounds(plan)}
    if given:
        return given
    medians = {f"median_{metric}_ms": predicted(plan, f"median_{metric}_ms") for metric in METRICS}
    return {key: found.high for key, found in medians.items() if found and found.high > 0}


def bounds(plan: Plan, metric: str) -> Iterator[tuple[str, Bound]]:
    """Each predicted or limited statistic of a metric, with its bound."""
    limit = limits(plan)
    keys = dict.fromkeys([*plan["predictions"], *limit])
    for key in keys:
        if not key.endswith(f"_{metric}_ms"):
            continue
        band = predicted(plan, key)
        expected = band.high if band else None
        yield key, Bound(limit.get(key), expected, "ms", True, "limit, and end of the band")


def throughput(plan: Plan) -> Bound:
    """Bound of the output tokens per second: the prediction at the slow end of the band."""
    found = plan["predictions"].get("output_tokens_per_s")
    if found is None:
        return Bound(None, None, "tokens/s")
    least = float(found) / max(float(plan["predictions"]["band"]["high"]), 1.0)
    needed = None if plan["bench"]["slo"] else least
    return Bound(needed, least, "tokens/s", formula="prediction / high end of the band")


def start(plan: Plan) -> Bound:
    seconds = float(plan["start"]["weights"]["host_path"]["seconds"])
    formula = "planned start; deployments end one of twice the time"
    return Bound(2 * seconds, seconds, "s", True, formula)


def waiting(plan: Plan) -> Bound:
    """Bound of the average number of waiting requests. Above it the plan calls for another replica,
    but does not fail, because the limits on latencies cover the cost of waiting.
    """
    row = plan["thresholds"]["requests_waiting"]
    return Bound(None, float(row["needed"]), "requests", True, row.get("formula", ""))
