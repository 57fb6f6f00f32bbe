"""Corrects predictions by the measurements of earlier deployments (files of `penstock bench plan
--save-result`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench.slo import parse_slo
from penstock_ops.plan.arrivals import arrivals_of
from penstock_ops.plan.calibration import Band
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.search import (
    Candidate,
    Goal,
    Question,
    Speed,
    candidates,
    simulate,
    statistic,
)
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.tiers import Tier

NARROWEST = 1.1
"""Minimum width of the corrected band: from 1/1.1 to 1.1 times the prediction. Repeated runs of the
same deployment differ by as much.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A planned deployment and its benchmark result."""

    candidate: Candidate
    replicas: int
    goal: Goal
    tpot: float
    """Measured mean time per output token in milliseconds."""
    ttft: float
    """Measured median time to first token in milliseconds."""


def corrected(subject: Subject, target: Target, speed: Speed, paths: Sequence[Path]) -> Speed:
    """`speed` with its step times scaled by the median ratio of measured to predicted TPOT. The new
    band covers the deviations from this median. The time to first token (TTFT) becomes known: its
    part outside steps is the median over the measurements.

    Raises PenstockError for a file that is not a plan's result, or is for another model or
    accelerator.
    """
    runs = [
        _measured(path, number, row, subject, target, speed)
        for path in paths
        for number, row in enumerate(_rows(path), start=1)
    ]
    if not runs:
        raise PenstockError("--calibrate: the files hold no result")
    ratios = [run.tpot / _predicted(run, "mean_tpot_ms", 1.0) for run in runs]
    factor = median(ratios)
    widest = max(NARROWEST, *(math.exp(abs(math.log(ratio / factor))) for ratio in ratios))
    waits = [run.ttft - _predicted(run, "median_ttft_ms", factor) for run in runs]
    return replace(
        speed,
        factor=factor,
        band=Band(1 / widest, widest),
        waiting=max(median(waits), 0.0) / 1e3,
        source=f"{speed.source}, times {factor:.3f} by {len(runs)} measured runs",
    )


def _predicted(run: Measured, key: str, factor: float) -> float:
    return statistic(simulate(run.candidate, run.replicas, run.goal, factor), key)


def _rows(path: Path) -> list[dict[str, Any]]:
    """The benchmark results in a file with one JSON object on each line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise PenstockError(f"{path}: {error}") from error
    return [row for row in found if isinstance(row, dict)]


def _measured(
    path: Path, number: int, row: dict[str, Any], subject: Subject, target: Target, speed: Speed
) -> Measured:
    plan = row.get("penstock", {}).get("plan")
    if not isinstance(plan, dict):
        raise PenstockError(f"{path}: result {number} is none of `penstock bench plan`")
    for what, found, own in (
        ("model", plan["model"]["sha256"], subject.digest),
        ("accelerator", plan["target"]["accelerator"], target.accelerator.name),
        ("weights", plan["model"]["weights"], subject.weights.name),
    ):
        if found != own:
            raise PenstockError(f"{path}: result {number} is of another {what}: {found}, not {own}")
    goal = Goal(
        tuple(arrivals_of(plan["workload"])),
        tuple(parse_slo("slo", text) for text in plan["bench"]["slo"]),
    )
    return Measured(
        _candidate(plan, subject, target, goal, speed),
        int(plan["choice"]["replicas"]),
        goal,
        float(row["mean_tpot_ms"]),
        float(row["median_ttft_ms"]),
    )


def _candidate(
    plan: dict[str, Any], subject: Subject, target: Target, goal: Goal, speed: Speed
) -> Candidate:
    """The deployment that the plan file chose."""
    choice = plan["choice"]
    cut = Cut(
        choice["tensor_parallel_size"],
        choice["pipeline_parallel_size"],
        choice["expert_parallel"],
        choice["attention_by_requests"],
    )
    load = Load(
        choice["max_num_batched_tokens"],
        choice["max_num_seqs"],
        fraction=choice["memory_fraction"],
    )
    rules, kv = engine(plan["engine"]), choice["kv_cache_dtype"]
    tiers = tuple(Tier(each["kind"], each["bytes"], each["gb_per_s"]) for each in choice["tiers"])
    question = Question(subject, target, rules, load, goal, speed, kv, tiers, [cut])
    found, misfits = candidates(question)
    if not found:
        raise PenstockError(f"the measured deployment does not fit here: {misfits[0][1]}")
    return max(found, key=Candidate.order)
