"""Pooled requests, which return a vector made from the hidden states of their prompt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Pooling(IntEnum):
    """Which rows of the final hidden state (after the last norm) are pooled."""

    NONE = 0
    """Not pooled: the sequence samples tokens."""
    LAST = 1
    MEAN = 2
    """The mean over all tokens."""


class PoolerOutput(IntEnum):
    """Meaning of the returned vector, with the wire's values."""

    NONE = 0
    """Pooled requests are rejected."""
    EMBEDDING = 1
    """The pooled hidden state, unnormalised."""
    UNIT_EMBEDDING = 2
    """The pooled hidden state, which the model's users normalise to unit length."""
    LABELS = 3
    """One logit for each label of the model's classification head."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """What the model returns for pooled requests."""

    output: int = PoolerOutput.NONE
    size: int = 0
    """Length of a vector."""
    only: bool = False
    """The model has no output head: all other requests are rejected."""
