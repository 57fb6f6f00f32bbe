"""Brute force beside the search: every deployment of a small target, one after the other.

Its own enumeration, its own rules of which engine takes which cut, its own percentiles and its own
verdict. Only sizes, the time of a step and the replica in virtual time are the planner's: they are
compared with logs, measurements and the real scheduler elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core import InvalidValueError
from penstock_lab.bench.slo import Slo
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Load, engine
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.memory import plan_memory
from penstock_ops.plan.search import Speed
from penstock_ops.plan.speed import step_model
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.virtual import Arrival, Limits, Outcome, Replica

SLOTS = 1024


@dataclass(frozen=True, order=True)
class Deployment:
    """One that holds: devices, the largest statistic over its bound, and what it is."""

    devices: int
    worst: float
    replicas: int
    cut: Cut
    chunk: int


def best(
    subject: Subject,
    target: Target,
    rules: str,
    arrivals: tuple[Arrival, ...],
    slo: tuple[Slo, ...],
    speed: Speed,
) -> Deployment | None:
    held = [
        Deployment(cut.tp * cut.pp * replicas, worst, replicas, cut, chunk)
        for cut in every_cut(subject, target, rules)
        for chunk in (2048, 8192)
        for replicas in range(1, target.count // (cut.tp * cut.pp) + 1)
        for worst in (_worst(subject, target, rules, cut, chunk, replicas, arrivals, slo, speed),)
        if worst <= 1
    ]
    return min(held, default=None)


def every_cut(subject: Subject, target: Target, rules: str) -> Iterator[Cut]:
    """All numbers of ranks and stages, with and without whole experts and attention by requests."""
    layers = subject.spec.layers
    heads = max(getattr(layer.mixer, "heads", 0) for layer in layers)
    kv = max(getattr(layer.mixer, "kv_heads", 0) for layer in layers)
    for tp in range(1, target.count + 1):
        for pp in range(1, min(target.count // tp, len(layers)) + 1):
            for experts, requests in ((False, False), (True, False), (True, True)):
                if experts and (tp == 1 or not subject.spec.experts):
                    continue
                if requests and rules == "penstock":
                    continue
                if rules != "penstock" and not requests and not _divides(heads, kv, tp):
                    continue
                if _placed(tp, pp, target.per_node, rules):
                    yield Cut(tp, pp, experts, requests)


def _divides(heads: int, kv: int, tp: int) -> bool:
    """As vLLM and SGLang assert: query heads in equal parts, and KV heads, or equally many ranks
    for each of these.
    """
    return heads % tp == 0 and (not kv or (kv % tp == 0 if kv >= tp else tp % kv == 0))


def _placed(tp: int, pp: int, per_host: int, rules: str) -> bool:
    """Hosts with equally many ranks, each with whole stages, or stages with whole hosts. Penstock
    fills hosts with whole stages, and cuts one only where it does not fit a host.
    """
    hosts = math.ceil(tp * pp / per_host)
    if (tp * pp) % hosts:
        return False
    each = tp * pp // hosts
    return each % tp == 0 or tp % each == 0


def _worst(
    subject: Subject,
    target: Target,
    rules: str,
    cut: Cut,
    chunk: int,
    replicas: int,
    arrivals: tuple[Arrival, ...],
    slo: tuple[Slo, ...],
    speed: Speed,
) -> float:
    """The largest statistic over its bound at the pessimistic end; infinite where it fails."""
    spec, weights, device = subject.spec, subject.weights, target.accelerator
    longest = max(each.isl + each.osl for each in arrivals)
    load = Load(chunk=chunk, sequences=0, context=longest)
    try:
        memory = plan_memory(spec, weights, device, cut, engine(rules), load)
    except InvalidValueError:
        return math.inf
    at_once = memory.concurrency(longest)
    if at_once < 1:
        return math.inf
    model = step_model(spec, weights, device, cut, speed.constants, "bf16")
    outcome = Replica(
        lambda *step: speed.band.high * model.seconds(*step),
        Limits(min(SLOTS, at_once), chunk, at_once * longest, engine(rules).paced),
    ).run(arrivals[::replicas])
    worst = max((_statistic(outcome, each.key) / each.limit for each in slo), default=0.0)
    return math.inf if _falls_behind(outcome) else worst


def _statistic(outcome: Outcome, key: str) -> float:
    """`p99_tpot_ms` and the like: the value that so many of the requests do not exceed."""
    share, metric = int(key[1:3]), key.split("_")[1]
    values = []
    for request in outcome.served:
        tokens = max(request.osl - 1, 1)
        spans = {
            "ttft": request.first - request.arrived,
            "tpot": (request.end - request.first) / tokens if request.osl > 1 else 0.0,
        }
        values.append(1e3 * spans[metric])
    at = max(-(-share * len(values) // 100) - 1, 0)
    return sorted(values)[at]


def _falls_behind(outcome: Outcome) -> bool:
    """The last fifth of the requests waits more than three times as long as the first one did, and
    five times what a request takes on average.
    """
    waits = [request.first - request.arrived for request in outcome.served]
    ends = [request.end for request in outcome.served]
    if math.inf in ends:
        return True
    fifth = max(len(waits) // 5, 1)
    each = (ends[-1] - outcome.served[0].arrived) / len(waits)
    return sum(waits[-fifth:]) / fifth > 3 * sum(waits[:fifth]) / fifth + 5 * each
