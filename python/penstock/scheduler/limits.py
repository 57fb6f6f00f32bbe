"""Limits of a step and of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.core import InvalidValueError, Pooling

AHEAD_SECONDS = 0.01
"""Default of `ahead_seconds`: on CPUs, the gap between steps is under 1% of such a step."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the scheduler. `max_queue` bounds the requests that wait for a slot.

    With one pipeline stage, a decode step may be planned ahead of the previous step's result. With
    `stages` > 1, up to `stages` plans are in flight, decoding sequences are spread over them, and
    each sequence is in one plan at a time.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_queue: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    stages: int = 1
    by_priority: bool = False
    """Schedule by ascending priority value, then by arrival."""
    pooling: Pooling = Pooling.LAST
    """Pooling applied to pooled requests."""
    max_wait: float = math.inf
    """Maximum queue time of a request that `expires`, in seconds."""
    arrivals: bool = True
    """Whether requests can arrive during the run. False for an offline batch, where every decode
    step is planned ahead.
    """
    ahead_seconds: float = AHEAD_SECONDS
    """Step time in seconds from which no plan is made ahead, if requests can arrive. Planning ahead
    makes a new request wait for one more step; not planning ahead adds the host's gap to every step
    of an answer. GPUs use infinity: their gap is a few percent of a step, so answers of more than
    about 50 tokens finish earlier.
    """

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise InvalidValueError("max_num_seqs", self.max_num_seqs, "at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidValueError(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_num_seqs ({self.max_num_seqs})",
            )
