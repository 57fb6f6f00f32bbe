"""A cause why pods do not serve."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """Stages on the way to a serving pod, in order. A failure at one stage makes later
    stages fail.
    """

    MISSING = 1
    FORBIDDEN = 2
    CLAIM = 3
    NODE = 4
    SCHEDULING = 5
    VOLUME = 6
    IMAGE = 7
    CONFIG = 8
    INIT = 9
    GROUP = 10
    ENDED = 11
    PROBE = 12


@dataclass(frozen=True, slots=True)
class Cause:
    stage: Stage
    subject: str
    """The object with the problem, for example `pod smollm2-0`."""
    summary: str
    """The problem in one line."""
    details: tuple[str, ...] = ()
    """Lines of evidence, such as an event's message or the end of a log."""
    remedy: str = ""
    lasting: bool = True
    """False if the problem may disappear without an action, so that `apply` keeps waiting."""
