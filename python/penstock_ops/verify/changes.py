"""Changes of status between two passes of `penstock verify --watch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock_ops.verify.finding import SEVERITY, Finding, Status
from penstock_ops.verify.reports.escaping import escaped
from penstock_ops.verify.reports.text import value

Key = tuple[str, str]
"""A check, and a device of it."""
ABSENT = "absent"
"""In place of a status, where a pass has no finding."""


@dataclass(frozen=True, slots=True)
class Change:
    """The findings of a check and device in two successive passes; at least one has one."""

    before: Finding | None
    now: Finding | None

    def line(self) -> str:
        """Check, device, both statuses, the value with its bounds, and the remedy."""
        found = self.now or self.before
        assert found is not None
        name = " ".join(filter(None, (found.check, escaped(found.device))))
        before, now = (each.status if each else ABSENT for each in (self.before, self.now))
        head = f"{name}: {before} -> {now}"
        if self.now is None:
            return head
        remedy = f"; remedy: {escaped(self.now.remedy)}" if self.now.remedy else ""
        return f"{head}: {value(self.now)}{remedy}"


def by_device(findings: Sequence[Finding]) -> dict[Key, Finding]:
    """The most severe finding of each check and device, of equal ones the first."""
    found: dict[Key, Finding] = {}
    for finding in findings:
        key = (finding.check, finding.device)
        if key not in found or _severity(found[key]) < _severity(finding):
            found[key] = finding
    return found


def retained(before: Mapping[Key, Finding], now: Mapping[Key, Finding]) -> dict[Key, Finding]:
    """`now`, with the last findings of devices whose check could not be read: a tool that hangs
    for one pass neither ends their faults nor hides the next change.
    """
    unread = {
        check
        for (check, device), finding in now.items()
        if not device and finding.status is Status.UNKNOWN
    }
    kept = {key: each for key, each in before.items() if key[0] in unread and key[1]}
    return {**kept, **now}


def changes(before: Mapping[Key, Finding], now: Mapping[Key, Finding]) -> Iterator[Change]:
    """Changes of status, in the order of checks. A finding of a whole node that appears or
    disappears counts only if it is a fault: a check has it in place of findings of its devices.
    """
    for key in dict.fromkeys([*now, *before]):
        change = Change(before.get(key), now.get(key))
        if change.before and change.now:
            if change.before.status is not change.now.status:
                yield change
        elif key[1] or _severity(change.before or change.now) > SEVERITY.index(Status.PASS):
            yield change


def _severity(finding: Finding | None) -> int:
    return SEVERITY.index(finding.status) if finding else 0
