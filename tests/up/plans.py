"""A plan, verified findings and measurements of runs, written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_ops.plan.profile import Profile
from penstock_ops.up.measures import Measures
from penstock_ops.verify.finding import Bound, Finding, Layer, Status

BANDS = {"tpot": (16.0, 20.0, 24.0), "ttft": (80.0, 100.0, 120.0), "e2el": (400.0, 500.0, 600.0)}
STATISTICS = tuple(f"{kind}_{metric}_ms" for metric in BANDS for kind in ("median", "p90", "p99"))

RATES = Profile(
    decodes=((1, 0.02), (8, 0.09)), chunks=((16, 0.04), (256, 0.64)), key=1e-7, pair=1e-8
)
LOAD = ["--rate", "1", "--isl", "32", "--osl", "8", "--requests", "10"]


def plan(*slo: str, **changes: Any) -> dict[str, Any]:
    """A plan for CPUs, whose statistics of a metric all have the same band."""
    return {
        "model": {"name": "m"},
        "target": {"resource": ""},
        "bench": {"slo": list(slo)},
        "predictions": {
            **{
                key: dict(zip(("low", "mid", "high"), BANDS[key.split("_")[1]], strict=True))
                for key in STATISTICS
            },
            "output_tokens_per_s": 120.0,
            "band": {"low": 0.8, "high": 1.2},
        },
        "start": {"weights": {"host_path": {"seconds": 60}}},
        "thresholds": {"requests_waiting": {"needed": 4}},
        **changes,
    }


AS_PREDICTED = Measures(
    "n",
    5.0,
    completed=40,
    statistics={key: BANDS[key.split("_")[1]][1] for key in STATISTICS} | {"mean_tpot_ms": 20.0},
    output_tokens_per_s=120.0,
    waiting=0.0,
    preemptions=0.0,
    step_seconds=0.020,
    foreign_share=0.0,
)


def slower(factor: float, *metrics: str, **changes: Any) -> Measures:
    """`AS_PREDICTED` with the latencies of `metrics` times `factor`."""
    statistics = {
        key: value * (factor if key.split("_")[1] in metrics else 1.0)
        for key, value in AS_PREDICTED.statistics.items()
    }
    return replace(AS_PREDICTED, statistics=statistics, **changes)


def verified(check: str, layer: Layer, status: Status, measured: float | None = None) -> Finding:
    bound = Bound(80.0, 100.0, "GB/s") if measured is not None else None
    return Finding(check, layer, "n", "", status, f"{check} is so", measured, bound, "c", "r")


def result(plan: Mapping[str, Any], factor: float, **changes: object) -> dict[str, Any]:
    """Of `bench plan`, with latencies of `factor` times the predicted ones."""
    predictions = plan["predictions"]
    latencies = {
        key: value["mid"] * factor for key, value in predictions.items() if key.endswith("_ms")
    }
    return {
        **latencies,
        "mean_tpot_ms": latencies["median_tpot_ms"],
        "completed": 10,
        "duration": 16.0,
        "output_throughput": predictions["output_tokens_per_s"] / factor,
        "penstock": {"failures": {}, "partial": False, "plan": plan},
        **changes,
    }
