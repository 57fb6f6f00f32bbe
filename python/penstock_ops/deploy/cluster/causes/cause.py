"""Cause of pods that do not serve."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """Stages on the way to a serving pod. A failure at an early stage makes later ones fail."""

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
    """For example `pod smollm2-0`."""
    summary: str
    """The problem in one line."""
    details: tuple[str, ...] = ()
    """Lines of evidence: an event, or the end of a log."""
    remedy: str = ""
    lasting: bool = True
    """False if it may resolve itself, so that `apply` keeps waiting."""
