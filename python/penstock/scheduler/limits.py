"""Bounds of a step and of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.core import InvalidValueError, Pooling

AHEAD_SECONDS = 0.01
"""On CPUs the gap between two steps that take so long is less than a hundredth of a step."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_queue` bounds the requests that wait for a slot.

    With one of `stages` a decode step may be planned ahead of the results of another. With several,
    as many plans are in flight, the decoding sequences are spread over them, and a sequence is in
    one plan at a time.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_queue: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    stages: int = 1
    by_priority: bool = False
    """Requests with a lower priority value come first, equal ones in the order of their arrival."""
    pooling: Pooling = Pooling.LAST
    """That of pooled requests."""
    max_wait: float = math.inf
    """Seconds for which a request that expires may wait for its turn."""
    arrivals: bool = True
    """Whether requests come while others run. None comes into a batch that is complete, so all its
    decode steps are planned ahead.
    """
    ahead_seconds: float = AHEAD_SECONDS
    """Where requests come, no plan is made ahead behind steps that take so long. A request that
    arrives would wait for it too, once; without it, each step of an answer waits for the host. On
    GPUs it is infinite: their gaps are a few hundredths of a step, so that answers of more than
    some fifty tokens end earlier.
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
