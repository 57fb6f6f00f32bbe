"""The cheapest of several targets. Each is searched only up to the best price so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock_ops.plan.hardware import Target
from penstock_ops.plan.search import Found, Question, Trial, search


@dataclass(frozen=True, slots=True)
class Dearer:
    """A target that was not chosen."""

    on: str
    why: str


def cheapest(
    question: Question, targets: Sequence[Target]
) -> tuple[Question, Found, tuple[Dearer, ...]]:
    """The question with the target whose deployment is cheapest per hour, the search result, and
    the other targets. On equal prices, the first target wins. If no target meets the goal, the
    first is returned.
    """
    answers: list[tuple[Question, Found, float]] = []
    least = math.inf
    for target in targets:
        asked = replace(question, target=target.within(least))
        found = search(asked) if asked.target.count else Found(None, (), (), 0)
        cost = target.cost(found.choice.devices) if found.choice else None
        answers.append((replace(asked, target=target), found, least))
        least = min(least, math.inf if cost is None else cost)
    at = next((n for n, each in enumerate(answers) if _cost(each) == least), 0)
    others = (each for n, each in enumerate(answers) if n != at)
    return (*answers[at][:2], tuple(Dearer(each[0].target.on, _why(*each)) for each in others))


def _cost(answer: tuple[Question, Found, float]) -> float | None:
    question, found, _ = answer
    return question.target.cost(found.choice.devices) if found.choice else None


def _why(question: Question, found: Found, budget: float) -> str:
    """Why a target was not chosen. `budget` is the price up to which it was searched."""
    choice = found.choice
    if choice is not None:
        cost = question.target.cost(choice.devices)
        cut, devices = choice.candidate.cut, choice.devices
        return f"{choice.replicas} x {cut} = {devices} devices, {cost:g} an hour"
    head = "nothing holds" if math.isinf(budget) else f"nothing holds for {budget:g} an hour"
    why = closest(found)
    return f"{head}; {why}" if why else head


def closest(found: Found) -> str:
    """Why nothing meets the goal: the best simulated trial, else why nothing fits."""
    if found.lost:
        trial = best(found.lost)[0]
        return f"closest: {trial.candidate.cut} x {trial.replicas}: {trial.failed}"
    return ": ".join(found.misfits[-1]) if found.misfits else ""


def best(lost: Sequence[Trial]) -> list[Trial]:
    """Trials that meet the goal first, then by distance to their bounds."""
    return sorted(
        lost,
        key=lambda trial: (bool(trial.failed), trial.worst, trial.devices, trial.candidate.order()),
    )
