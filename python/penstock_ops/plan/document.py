"""Writes plan.yaml: the request, the chosen deployment and the reasons, as plain data.

Other commands (deploy, verify, bench) read the file; none changes it. Equal input gives equal
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from penstock import __version__
from penstock.config.forms import SCHEMA
from penstock.core import PenstockError
from penstock.model.sizing import active_parameters, parameters
from penstock_ops.plan.engines import Engine, Load
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.memory import Memory
from penstock_ops.plan.offers import Offer
from penstock_ops.plan.prices import Dearer, best, closest
from penstock_ops.plan.search import (
    SPEED,
    Candidate,
    Goal,
    SearchResult,
    Speed,
    Trial,
    judged,
    simulate,
    spoken,
)
from penstock_ops.plan.starting import Rates, start, storage
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.thresholds import thresholds

RUNNERS_UP = 10
UNKNOWN = "unknown"
STATISTICS = ("median", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request: model, hardware, engine and goal. The plan repeats it."""

    subject: Subject
    target: Target
    engine: Engine
    kv: str
    goal: Goal
    speed: Speed
    load: Load
    """The requested engine settings; `context` is 0 for the longest sequence that fits."""
    workload: dict[str, object]
    """Source of the arrivals: a trace file, or a rate and lengths."""
    rates: Rates
    """Rates at which nodes pull the image and read the weights, where the user gave them."""


def document(
    request: Request,
    found: SearchResult,
    offered: Sequence[Offer] = (),
    dearer: Sequence[Dearer] = (),
) -> dict[str, Any]:
    """The content of plan.yaml. Raises PenstockError if no deployment on the target meets the
    goal.
    """
    if found.choice is None:
        why = closest(found) or "no device was tried"
        raise PenstockError(f"nothing on {request.target.on} holds the goal; {why}")
    subject, target = request.subject, request.target
    length = served(found.choice.candidate.memory, request)
    choice = as_needed(found.choice, request, length)
    begun = start(choice.candidate.memory, subject, target, request.engine.name, request.rates)
    limits = thresholds(choice, subject, target, request.goal, request.speed)
    return {
        "schema": SCHEMA,
        "penstock": __version__,
        "model": {
            "name": subject.name,
            "sha256": subject.digest,
            "parameters": parameters(subject.spec),
            "active_parameters": active_parameters(subject.spec),
            "weights": subject.weights.name,
            "runs": subject.refused or "yes",
            "notes": list(subject.notes),
        },
        "target": {
            "on": target.on,
            "accelerator": target.accelerator.name,
            "title": target.accelerator.title,
            "count": target.count,
            "per_node": min(target.per_node, target.count),
            "price_per_hour": target.price,
            "resource": target.accelerator.resource,
            "node": target.node.name if target.node else None,
            "fabric_resources": dict(target.node.fabric_resources) if target.node else {},
            "verified": target.accelerator.verified,
        },
        "engine": request.engine.name,
        "workload": request.workload,
        "slo": {slo.key: slo.limit for slo in request.goal.slo},
        "choice": chosen(choice, request, length),
        "memory": rank_rows(choice.candidate.memory),
        "predictions": predictions(choice, request.goal, request.speed),
        "start": begun,
        "thresholds": {"storage_gb_per_s": storage(begun), **limits},
        "bench": bench(request),
        "runners_up": [runner_up(trial) for trial in best(found.lost)[:RUNNERS_UP]],
        "offers": [
            {
                "change": each.change,
                "cut": str(each.trial.candidate.cut),
                "replicas": each.trial.replicas,
                "devices": each.trial.devices,
                "caveat": each.caveat,
            }
            for each in offered
        ],
        "other_targets": [{"on": each.on, "why": each.why} for each in dearer],
        "misfits": [{"cut": cut, "why": why} for cut, why in found.misfits[-RUNNERS_UP:]],
        "sources": [target.accelerator.source, request.speed.source],
    }


def as_needed(trial: Trial, request: Request, length: int) -> Trial:
    """`trial` with its KV memory limited, if the target is this machine's CPUs, because other
    programs use the same memory. The limit is the load's need, or one sequence of the maximum
    length if that is more. If prompts share prefixes, KV keeps all of the memory.
    """
    if not request.target.accelerator.is_cpu or request.goal.shares:
        return trial
    candidate = trial.candidate
    memory = candidate.memory.left([(candidate.sequences, request.goal.longest), (1, length)])
    return replace(trial, candidate=replace(candidate, memory=memory))


def chosen(trial: Trial, request: Request, length: int) -> dict[str, Any]:
    candidate = trial.candidate
    return {
        "tensor_parallel_size": candidate.cut.tp,
        "pipeline_parallel_size": candidate.cut.pp,
        "expert_parallel": candidate.cut.by_experts,
        "attention_by_requests": candidate.cut.by_requests,
        "replicas": trial.replicas,
        "devices": trial.devices,
        "price_per_hour": request.target.cost(trial.devices),
        "max_num_batched_tokens": candidate.chunk,
        "max_num_seqs": candidate.sequences,
        "max_model_len": length,
        "kv_cache_dtype": request.kv,
        "kv_tokens": candidate.memory.kv_tokens,
        "memory_fraction": fraction(candidate, request),
        "tiers": [
            {
                "kind": tier.kind,
                "bytes": tier.size,
                "gb_per_s": tier.rate,
                "tokens": kept.tokens,
            }
            for tier, kept in zip(candidate.tiers, candidate.stores or (), strict=True)
        ],
        "worst_over_bound": round(trial.worst, 3),
    }


def fraction(candidate: Candidate, request: Request) -> float | None:
    """Share of the device memory that the engine may use, in the form of its flag: the requested
    share, else the proposed one. None if the engine has no such flag.
    """
    load = replace(request.load, chunk=candidate.chunk)
    device, spec = request.target.accelerator, request.subject.spec
    return request.engine.fraction(spec, device, candidate.cut, load)


def served(memory: Memory, request: Request) -> int:
    """Maximum length of a sequence in tokens: as requested, else the longest that fits, up to the
    model's maximum.
    """
    return request.load.context or memory.longest(request.subject.spec.max_position)


def rank_rows(memory: Memory) -> list[dict[str, Any]]:
    """Rows with the memory of ranks in bytes; ranks with equal memory share a row."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for rank in memory.ranks:
        row = rows.setdefault(
            (rank.weights, rank.room),
            {
                "ranks": [],
                "total": rank.total,
                "weights": rank.weights,
                **{line.name.replace(" ", "_"): line.bytes for line in rank.engine},
                "kv": rank.room,
                "kv_bytes_per_token": round(rank.growth, 3),
            },
        )
        row["ranks"].append(rank.rank)
    return list(rows.values())


def predictions(trial: Trial, goal: Goal, speed: Speed) -> dict[str, Any]:
    """Predicted latencies at the middle and at both ends of the error band. TTFT is left out if its
    part outside steps is unknown.
    """
    outcomes = {
        name: simulate(trial.candidate, trial.replicas, goal, factor)
        for name, end in (("low", speed.band.low), ("mid", 1.0), ("high", speed.band.high))
        for factor in (end * speed.factor,)
    }
    found: dict[str, Any] = {}
    for metric in ("tpot", "ttft", "e2el"):
        for kind in STATISTICS:
            key = f"{kind}_{metric}_ms"
            values = {
                name: round(judged(outcome, key, speed), 2) for name, outcome in outcomes.items()
            }
            known = metric == "tpot" or speed.waiting is not None
            found[key] = values if known else {UNKNOWN: True, "at_least": values["low"]}
    mid = outcomes["mid"]
    tokens = sum(each.osl for each in mid.served)
    found["output_tokens_per_s"] = round(tokens / mid.seconds * trial.replicas, 1)
    prompts = sum(arrival.isl for arrival in goal.arrivals[:: trial.replicas])
    found["prompt_tokens_reused"] = {
        "kv": round(mid.pooled / prompts, 3),
        "tiers": round(mid.stored / prompts, 3),
    }
    found["busy"] = round(mid.busy / mid.seconds, 3)
    found["band"] = {"low": speed.band.low, "high": speed.band.high}
    return found


def bench(request: Request) -> dict[str, Any]:
    """Input of `penstock bench plan`: the load, and the latency bounds."""
    return {**request.workload, "slo": [f"{slo.key}:{slo.limit:g}" for slo in request.goal.slo]}


def runner_up(trial: Trial) -> dict[str, Any]:
    candidate = trial.candidate
    return {
        "cut": str(candidate.cut),
        "replicas": trial.replicas,
        "devices": trial.devices,
        "max_num_batched_tokens": candidate.chunk,
        "tiers": [tier.kind for tier in candidate.tiers],
        "worst_over_bound": round(trial.worst, 3),
        "holds": not trial.failed,
        "why": trial.failed or _held(trial),
    }


def _held(trial: Trial) -> str:
    if not trial.tightest:
        return f"{spoken(SPEED)} up to {trial.tightness:,.0f} ms"
    return f"{spoken(trial.tightest)} at {trial.worst:.0%} of the limit"


def write(plan: dict[str, Any], path: Path) -> None:
    path.write_text(dump(plan), encoding="utf-8")


def dump(plan: dict[str, Any]) -> str:
    return yaml.safe_dump(plan, sort_keys=False, width=100, allow_unicode=True)
