"""A reason why pods do not serve."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """Steps on the way to a pod that serves. An earlier one that fails makes later ones fail."""

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
    """Such as `pod smollm2-0`."""
    summary: str
    """What is wrong, in a line."""
    details: tuple[str, ...] = ()
    """Lines of evidence: an event, the end of a log."""
    remedy: str = ""
    lasting: bool = True
    """False: time may mend it, so `apply` goes on waiting."""
