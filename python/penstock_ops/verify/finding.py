"""Findings: the result of a check, with the value, its bounds, the cause and the remedy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    """Below what this hardware is expected to give, or a risk; the plan still holds."""
    FAIL = "fail"
    """Below what the plan needs, or a fault."""
    UNKNOWN = "unknown"
    """The plan depends on it, and it could not be read or measured."""
    SKIPPED = "skipped"
    """Does not apply here: the finding has the reason."""


SEVERITY = (Status.SKIPPED, Status.PASS, Status.WARN, Status.UNKNOWN, Status.FAIL)
"""From harmless to severe."""


class Layer(StrEnum):
    """Part of a deployment that a check examines; the verdict names the layer that is at fault."""

    DEVICE = "device"
    MEMORY = "memory"
    FABRIC = "fabric"
    STORAGE = "storage"
    HOST = "host"
    ENGINE = "engine"
    MODEL = "model"
    """The plan's own model of step times, where hardware and engine give what it counts on."""
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Bound:
    """The two limits of a measured value. A value below `needed` fails: the plan does not hold
    with it. A value below `expected` warns: the hardware gives less than it should. If
    `is_ceiling`, both are maxima.
    """

    needed: float | None
    expected: float | None
    unit: str
    is_ceiling: bool = False
    formula: str = ""
    """Where both values come from."""

    def status(self, measured: float) -> Status:
        if self.needed is not None and self._misses(measured, self.needed):
            return Status.FAIL
        if self.expected is not None and self._misses(measured, self.expected):
            return Status.WARN
        return Status.PASS

    def _misses(self, measured: float, limit: float) -> bool:
        # Written so that a value that is not a number misses every limit.
        return not (measured <= limit if self.is_ceiling else measured >= limit)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check for one device, node or pair of nodes."""

    check: str
    layer: Layer
    node: str
    """A node's name, or two with ` -> ` between them."""
    device: str
    """What was examined: a bus id, a NIC, a directory; empty for the node."""
    status: Status
    summary: str
    """One line: the value and what it means, or the reason why the check does not apply."""
    measured: float | None = None
    bound: Bound | None = None
    cause: str = ""
    remedy: str = ""
    """A command or a step. Never empty if the status is FAIL, UNKNOWN or WARN."""
    evidence: str = ""
    """The line that it was read from."""


def shown(value: float) -> str:
    """A measured value in text: four digits, integers whole, infinity as `unlimited`."""
    if math.isinf(value):
        return "unlimited"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
