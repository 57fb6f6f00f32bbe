"""Suggested changes, which are never applied: changes to meet the goal with fewer devices and, if
nothing meets the goal, changes to meet it at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock_lab.bench.slo import Slo
from penstock_ops.plan.arrivals import arrivals_of
from penstock_ops.plan.fitting import KV_CAVEAT, MOST_NODES, NEEDS_CHECKPOINT, counts, on
from penstock_ops.plan.prices import best
from penstock_ops.plan.search import Question, SearchResult, Trial, judge, judged, search
from penstock_ops.plan.weights import uniform

ODD_CAVEAT = "neither a power of two nor whole nodes"
SLOWER = (2, 4)
"""Fractions of the rate that are tried."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A suggested deployment: flags that lead to it, its simulated result, and what to check
    first.
    """

    change: str
    trial: Trial
    caveat: str


def offers(question: Question, devices: int) -> list[Offer]:
    """The suggestions that meet the goal on fewer than `devices` devices."""
    cuts = [cut for cut in question.cuts if cut.size < devices]
    if devices < 2 or (question.cuts and not cuts):
        return []
    fewer = replace(question, target=replace(question.target, count=devices - 1), cuts=cuts)
    return [*_types(fewer), *_odd(fewer)]


def _odd(question: Question) -> Iterator[Offer]:
    """Fewer devices that are neither a power of two nor whole nodes, if `question` leaves these
    out.
    """
    choice = search(replace(question, usual=False)).choice if question.usual else None
    if choice is not None and not question.cuts:
        yield Offer(_cut_flags(choice), choice, ODD_CAVEAT)


def _cut_flags(trial: Trial) -> str:
    cut = trial.candidate.cut
    flags = f"-tp {cut.tp} -pp {cut.pp}"
    flags += " --expert-parallel" if cut.by_experts else ""
    return flags + (" --attention-by-requests" if cut.by_requests else "")


def _types(question: Question) -> Iterator[Offer]:
    """Smaller number types of KV or weights."""
    for change, changed, caveat in _smaller(question):
        choice = search(changed).choice
        if choice is not None:
            yield Offer(change, choice, caveat)


def _smaller(question: Question) -> Iterator[tuple[str, Question, str]]:
    subject = question.subject
    if "fp8" not in question.target.accelerator.flops:
        return
    if question.kv == "bf16":
        yield "--kv-cache-dtype fp8", replace(question, kv="fp8"), KV_CAVEAT
    if subject.weights.name in ("bf16", "f32"):
        changed = replace(question, subject=replace(subject, weights=uniform("fp8")))
        yield "--weights fp8", changed, NEEDS_CHECKPOINT.format("fp8")


def remedies(question: Question, found: SearchResult, workload: Mapping[str, Any]) -> list[Offer]:
    """Changes that meet the goal where `found` does not, each sufficient alone."""
    usual = replace(question, usual=True)
    return [
        *_types(usual),
        *_shorter(usual),
        *_looser(usual, found),
        *_recut(usual),
        *_more(usual),
        *_slower(usual, workload),
    ]


def _shorter(question: Question) -> Iterator[Offer]:
    asked = question.load.context
    if asked:
        choice = search(replace(question, load=replace(question.load, context=0))).choice
        if choice is not None:
            longest = choice.candidate.memory.longest(asked)
            yield Offer(f"--max-model-len {longest}", choice, "")


def _looser(question: Question, found: SearchResult) -> Iterator[Offer]:
    """Looser limits, which the closest deployment meets."""
    goal, speed = question.goal, question.speed
    closest = best(found.lost)[0] if found.lost else _unlimited(question)
    if closest is None:
        return
    values = {slo: judged(closest.outcome, slo.key, speed) for slo in goal.slo}
    slo = tuple(Slo(slo.key, max(slo.limit, _above(value))) for slo, value in values.items())
    trial = judge(closest.candidate, closest.replicas, replace(goal, slo=slo), speed)
    if slo != goal.slo and not trial.failed:
        yield Offer(f"--slo {','.join(f'{each.key}:{each.limit:g}' for each in slo)}", trial, "")


def _unlimited(question: Question) -> Trial | None:
    """The fastest deployment without limits, on the largest partition that fits."""
    goal = replace(question.goal, slo=())
    for size in sorted({cut.size for cut in question.allowed}, reverse=True):
        cuts = [cut for cut in question.allowed if cut.size == size]
        choice = search(replace(question, goal=goal, cuts=cuts)).choice
        if choice is not None:
            return choice
    return None


def _above(milliseconds: float) -> float:
    """The next whole number of milliseconds."""
    return float(int(milliseconds) + 1)


def _recut(question: Question) -> Iterator[Offer]:
    """Another partition than the requested one."""
    if question.cuts and not question.target.accelerator.is_cpu:
        choice = search(replace(question, cuts=())).choice
        if choice is not None:
            yield Offer(_cut_flags(choice), choice, "")


def _more(question: Question) -> Iterator[Offer]:
    """More devices of the same kind: the smallest sufficient number beyond the target's."""
    target, wanted = question.target, question.target.per_node * MOST_NODES
    if target.accelerator.is_cpu or target.price is not None or target.count >= wanted:
        return
    choice = search(replace(question, target=replace(target, count=wanted))).choice
    if choice is not None:
        count = next(count for count in counts(target) if count >= choice.devices)
        yield Offer(on(target, count), choice, "")


def _slower(question: Question, workload: Mapping[str, Any]) -> Iterator[Offer]:
    """A lower rate, of random arrivals."""
    rate = float(workload.get("rate", 0))
    for part in SLOWER if rate else ():
        arrivals = tuple(arrivals_of({**workload, "rate": rate / part}))
        choice = search(replace(question, goal=replace(question.goal, arrivals=arrivals))).choice
        if choice is not None:
            yield Offer(f"--rate {rate / part:g}", choice, "")
            return
