"""Limits of the scheduler for steps and requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.core import InvalidValueError, Pooling

AHEAD_SECONDS = 0.01
"""Default of `Limits.ahead_seconds`. On CPUs, the device's idle time between two steps is less than
1% of a step of this length.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the scheduler. `max_queue` is the maximum number of requests that wait for a slot.

    With one pipeline stage, a decode step may be planned ahead of the previous step's result. With
    `stages` > 1, up to `stages` plans are in flight, decoding sequences are spread over them, and
    each sequence is in at most one of them.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_queue: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    stages: int = 1
    by_priority: bool = False
    """Whether to schedule by priority (lowest value first), then by arrival. Otherwise by arrival
    only.
    """
    pooling: Pooling = Pooling.LAST
    """Which hidden states form the vector of a pooled (embedding) request, for example the last
    token's.
    """
    max_wait: float = math.inf
    """Maximum queue time in seconds: a request with `expires` that is not admitted by then is
    rejected.
    """
    arrivals: bool = True
    """Whether requests can arrive during the run. False for an offline batch, where every decode
    step is planned ahead.
    """
    ahead_seconds: float = AHEAD_SECONDS
    """If requests can arrive and the last step took at least this many seconds, the next step is
    not planned ahead. Planning ahead makes a new request wait for one more step. Not planning ahead
    leaves the device idle between steps, while the host plans. GPUs use infinity: there the idle
    time is a few percent of a step, so with planning ahead, answers of more than about 50 tokens
    finish earlier.
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
