"""All checks of one node, in the order of reports."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core import InvalidValueError, did_you_mean
from penstock_ops.verify.checks import limits
from penstock_ops.verify.checks.check import NodeCheck

CHECKS: tuple[NodeCheck, ...] = (limits.CHECK,)


def named(names: Sequence[str]) -> tuple[NodeCheck, ...]:
    """The checks with these names. InvalidValueError if one is unknown."""
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            expected = f"names of --list-checks{did_you_mean(name, known)}"
            raise InvalidValueError("--checks", name, expected)
    return tuple(check for check in CHECKS if check.name in names)
