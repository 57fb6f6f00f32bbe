"""Collects the output rows of a step for the server. A row has one request's new tokens, its
vector, or only its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from penstock.core import FinishReason, LogprobRow, StepOutputs
from penstock.scheduler.sequence import Sequence

U32_MAX = 2**32 - 1


class OutputBuffer:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows = StepOutputs()

    @property
    def filled(self) -> bool:
        return bool(self._rows.ids)

    def take(self) -> StepOutputs:
        rows, self._rows = self._rows, StepOutputs()
        return rows

    def tokens(
        self,
        seq: Sequence,
        tokens: array[int],
        finish: FinishReason,
        stop_token: int,
        logprobs: list[LogprobRow] | None,
    ) -> None:
        """Add a row with sampled tokens; `finish` other than NONE ends the request."""
        rows = self._rows
        if logprobs:
            rows.logprobs[len(rows.ids)] = logprobs[: len(tokens)]
        self._head(seq, finish, stop_token)
        rows.counts.append(len(tokens))
        rows.tokens.extend(tokens)

    def vector(self, seq: Sequence, vector: bytes) -> None:
        """Add the output row that ends a pooled request; `vector` has its encoded numbers."""
        self._rows.vectors[len(self._rows.ids)] = vector
        self.end(seq, FinishReason.STOP)

    def end(self, seq: Sequence, finish: FinishReason, error: str = "") -> None:
        """Add a row without tokens that ends the request."""
        if error:
            self._rows.errors[len(self._rows.ids)] = error
        self._head(seq, finish, -1)
        self._rows.counts.append(0)

    def _head(self, seq: Sequence, finish: FinishReason, stop_token: int) -> None:
        rows = self._rows
        first = seq.first_output
        if first:
            self._first(seq)
        rows.ids.append(seq.request.id)
        rows.finish.append(finish)
        rows.stop_tokens.append(stop_token)
        rows.cached_tokens.append(seq.cached_tokens if first else 0)
        rows.queue_us.append(self._queue_us(seq) if first else 0)

    def _first(self, seq: Sequence) -> None:
        seq.first_output = False
        if seq.tier_tokens is not None:
            self._rows.tier_tokens[len(self._rows.ids)] = seq.tier_tokens
        if seq.prompt_logprobs >= 0:
            self._rows.prompt_logprobs[len(self._rows.ids)] = seq.prompt_rows
            seq.prompt_rows = []
            seq.prompt_logprobs = -1

    def _queue_us(self, seq: Sequence) -> int:
        """Queue time in microseconds: from the request's arrival to its first admission, or to now
        if it was not admitted yet.
        """
        left = seq.first_schedule if seq.first_schedule >= 0 else self._clock()
        return min(max(int((left - seq.request.arrived) * 1e6), 0), U32_MAX)
