"""Outputs of a step for clients: one row for each request that got tokens or has ended."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from penstock.core.plan import LogprobRow
from penstock.core.tiers import TierTokens


class FinishReason(IntEnum):
    """Why a request ended, with the numbers that the wire format uses. Every request ends exactly
    once.
    """

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4
    REJECTED = 5
    UNFIT = 6
    """No engine of this configuration can run the request."""


_FROM_THE_POOL = TierTokens()


class StepOutput(NamedTuple):
    """One row of `StepOutputs`, for code where speed does not matter."""

    id: int
    finish: FinishReason
    stop_token: int
    cached_tokens: int
    queue_us: int
    tokens: array[int]
    logprobs: list[LogprobRow]
    prompt_logprobs: list[LogprobRow]
    error: str
    tier_tokens: TierTokens
    vector: bytes


@dataclass(slots=True)
class StepOutputs:
    """Outputs of one step as columns of equal length. `tokens` has the tokens of all rows,
    concatenated in row order. The dicts are keyed by row.

    `cached_tokens` and `queue_us` (microseconds in the queue) are set in a request's first row and
    0 in its later ones. `stop_tokens` is -1 unless a token ended the request. `cached_tokens`
    counts hits in the pool and all tiers. `tier_tokens` has only rows with tokens from tiers, at
    most `cached_tokens` in total. `vectors` has the last row of each pooled request, as
    little-endian f32.
    """

    ids: array[int] = field(default_factory=lambda: array("Q"))
    finish: array[int] = field(default_factory=lambda: array("B"))
    stop_tokens: array[int] = field(default_factory=lambda: array("i"))
    cached_tokens: array[int] = field(default_factory=lambda: array("I"))
    queue_us: array[int] = field(default_factory=lambda: array("I"))
    counts: array[int] = field(default_factory=lambda: array("H"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[LogprobRow]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    tier_tokens: dict[int, TierTokens] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> Iterator[StepOutput]:
        at = 0
        for row, request_id in enumerate(self.ids):
            end = at + self.counts[row]
            yield StepOutput(
                request_id,
                FinishReason(self.finish[row]),
                self.stop_tokens[row],
                self.cached_tokens[row],
                self.queue_us[row],
                self.tokens[at:end],
                self.logprobs.get(row, []),
                self.prompt_logprobs.get(row, []),
                self.errors.get(row, ""),
                self.tier_tokens.get(row, _FROM_THE_POOL),
                self.vectors.get(row, b""),
            )
            at = end


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges after a step, and counters since the start of the engine."""

    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    masks: int = 0
    """Number of token masks computed for grammars. `mask_seconds` is the time that threads spent on
    computing them, `mask_wait_seconds` the time that rows waited for them.
    """
    mask_seconds: float = 0.0
    mask_wait_seconds: float = 0.0
