"""Suggests smaller number types for weights or KV with which fewer devices would meet the goal.
They are never applied automatically.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock_ops.plan.search import Question, Trial, search
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.weights import uniform

KV_CAVEAT = "keys and values of 8 bits change answers a little: compare them on your own prompts"
WEIGHTS_CAVEAT = "needs a checkpoint in fp8, or quantisation at load; answers change a little"


@dataclass(frozen=True, slots=True)
class Offer:
    """A suggested deployment with another number type: the change, its simulated result, and what
    to check first.
    """

    change: str
    trial: Trial
    caveat: str


def offers(question: Question, devices: int) -> list[Offer]:
    """The suggestions that meet the goal on fewer than `devices` devices."""
    target, cuts = question.target, question.cuts
    smaller = replace(target, count=devices - 1)
    fitting = [cut for cut in cuts if cut.size < devices]
    if devices < 2 or (cuts and not fitting) or "fp8" not in target.accelerator.flops:
        return []
    found = []
    for change, changed, number, caveat in _changes(question.subject, question.kv):
        other = replace(question, subject=changed, target=smaller, kv=number, cuts=fitting)
        choice = search(other).choice
        if choice is not None:
            found.append(Offer(change, choice, caveat))
    return found


def _changes(subject: Subject, kv: str) -> Iterator[tuple[str, Subject, str, str]]:
    if kv == "bf16":
        yield "kv_cache_dtype fp8", subject, "fp8", KV_CAVEAT
    if subject.weights.name in ("bf16", "f32"):
        yield "weights fp8", replace(subject, weights=uniform("fp8")), kv, WEIGHTS_CAVEAT
