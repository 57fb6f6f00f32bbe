"""Pooled requests: those that end with a vector made of the hidden states of their prompt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Pooling(IntEnum):
    """Which rows of the hidden state, after the final norm, make the vector of a sequence."""

    NONE = 0
    """The sequence samples tokens."""
    LAST = 1
    MEAN = 2
    """Over all tokens."""


class PoolerOutput(IntEnum):
    """What the vector is, with the wire's values."""

    NONE = 0
    """Pooled requests are refused."""
    EMBEDDING = 1
    """The pooled hidden state, which the model's users take as it is."""
    UNIT_EMBEDDING = 2
    """The pooled hidden state, which the model's users scale to length 1."""
    LABELS = 3
    """A logit of each label of the model's classification head."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """What the engine answers to pooled requests."""

    output: int = PoolerOutput.NONE
    size: int = 0
    """Numbers of a vector."""
    only: bool = False
    """The model has no output head: all other requests are refused."""
