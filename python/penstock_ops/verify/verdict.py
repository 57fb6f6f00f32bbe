"""The verdict: one result from all findings, and the finding that explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock_ops.verify.finding import Finding, Layer, Status


class Outcome(StrEnum):
    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    NOT_PROVEN = "not proven"


EXIT_STATUS = {Outcome.HOLDS: 0, Outcome.DOES_NOT_HOLD: 1, Outcome.NOT_PROVEN: 3}
CAUSES_FIRST = tuple(Layer)
"""Layers in the order in which one explains faults of the next: a lost device also slows its
fabric, and a slow fabric the engine.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    cause: Finding | None
    """The finding that decides: the fault, or what is unknown; None if nothing is."""
    findings: tuple[Finding, ...]

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.outcome]

    def count(self, status: Status) -> int:
        return sum(finding.status is status for finding in self.findings)


def verdict(findings: Sequence[Finding]) -> Verdict:
    """DOES_NOT_HOLD with any failure, else NOT_PROVEN with anything unknown, or with no check that
    applied at all.
    """
    kept = tuple(findings)
    if failure := _first(kept, Status.FAIL):
        return Verdict(Outcome.DOES_NOT_HOLD, failure, kept)
    unknown = _first(kept, Status.UNKNOWN)
    if unknown or all(finding.status is Status.SKIPPED for finding in kept):
        return Verdict(Outcome.NOT_PROVEN, unknown, kept)
    return Verdict(Outcome.HOLDS, None, kept)


def _first(findings: Sequence[Finding], status: Status) -> Finding | None:
    found = [finding for finding in findings if finding.status is status]
    return min(found, key=lambda each: CAUSES_FIRST.index(each.layer), default=None)
