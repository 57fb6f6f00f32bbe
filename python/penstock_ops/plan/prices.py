"""Chooses the cheapest of several targets. Each target is searched only up to the lowest price
found before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock_ops.plan.cut import deployed
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.search import Question, SearchResult, Trial, search


@dataclass(frozen=True, slots=True)
class Dearer:
    """A target that was not chosen, and the reason."""

    on: str
    why: str


def cheapest(
    question: Question, targets: Sequence[Target]
) -> tuple[Question, SearchResult, tuple[Dearer, ...]]:
    """Search all targets for a deployment that meets the goal. Returns the question with the target
    whose deployment has the lowest price per hour, its search result, and the other targets. On
    equal prices, the first target wins. If no target meets the goal, the result is that of the
    first.
    """
    answers: list[tuple[Question, SearchResult, float]] = []
    least = math.inf
    for target in targets:
        asked = replace(question, target=target.within(least))
        found = search(asked) if asked.target.count else SearchResult(None, (), (), 0)
        cost = target.cost(found.choice.devices) if found.choice else None
        answers.append((replace(asked, target=target), found, least))
        least = min(least, math.inf if cost is None else cost)
    at = next((n for n, each in enumerate(answers) if _cost(each) == least), 0)
    others = (each for n, each in enumerate(answers) if n != at)
    return (*answers[at][:2], tuple(Dearer(each[0].target.on, _why(*each)) for each in others))


def preferred(
    question: Question, targets: Sequence[Target]
) -> tuple[Question, SearchResult, tuple[Dearer, ...]]:
    """As `cheapest`, among powers of two and whole nodes; among all partitions if none of these
    meets the goal.
    """
    answer = cheapest(replace(question, usual=True), targets)
    if answer[1].choice or question.cuts:
        return answer
    return cheapest(question, targets)


def _cost(answer: tuple[Question, SearchResult, float]) -> float | None:
    question, found, _ = answer
    return question.target.cost(found.choice.devices) if found.choice else None


def _why(question: Question, found: SearchResult, budget: float) -> str:
    """Explains why a target was not chosen. `budget` is the price per hour up to which deployments
    were searched.
    """
    choice = found.choice
    if choice is not None:
        cost = question.target.cost(choice.devices)
        how = deployed(str(choice.candidate.cut), choice.replicas, choice.devices)
        devices = f"{choice.devices} device{'s' if choice.devices > 1 else ''}"
        return f"{devices}{f' ({how})' if how else ''}, {cost:g} an hour"
    head = "nothing holds" if math.isinf(budget) else f"nothing holds for {budget:g} an hour"
    why = closest(found)
    return f"{head}; {why}" if why else head


def closest(found: SearchResult) -> str:
    """Explains why no deployment meets the goal: how close the best simulated one came or, if none
    was simulated, why none fits.
    """
    if found.lost:
        trial = best(found.lost)[0]
        how = deployed(str(trial.candidate.cut), trial.replicas, trial.devices)
        return f"closest is {how}: {trial.failed}" if how else trial.failed
    return ": ".join(found.misfits[-1]) if found.misfits else ""


def best(lost: Sequence[Trial]) -> list[Trial]:
    """The trials sorted: those that meet the goal first, then by how far they miss their bounds."""
    return sorted(
        lost,
        key=lambda trial: (
            bool(trial.failed),
            trial.tightness,
            trial.devices,
            trial.candidate.order(),
        ),
    )
