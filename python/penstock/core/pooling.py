"""Pooled requests. Instead of tokens, they return a vector computed from the hidden states of their
prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Pooling(IntEnum):
    """How the hidden states of a prompt (after the final norm) become one vector."""

    NONE = 0
    """Not pooled: the sequence samples tokens."""
    LAST = 1
    MEAN = 2
    """The mean over all tokens."""


class PoolerOutput(IntEnum):
    """Meaning of the vector that a pooled request returns, with the numbers that the wire format
    uses.
    """

    NONE = 0
    """Pooled requests are rejected."""
    EMBEDDING = 1
    """The pooled hidden state, unnormalised."""
    UNIT_EMBEDDING = 2
    """The pooled hidden state. The API server scales it to unit length, unless the request disables
    that.
    """
    LABELS = 3
    """One logit for each label of the model's classification head."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """The model's output for pooled requests."""

    output: int = PoolerOutput.NONE
    size: int = 0
    """Number of values of a vector."""
    only: bool = False
    """Whether the model has no output head, so that all requests other than pooled ones are
    rejected.
    """
