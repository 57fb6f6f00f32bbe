"""Results of a batch, with vLLM's fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core import LogprobRow


class Logprob(NamedTuple):
    """Log-probability of a token under the unchanged logits, its rank (1 = most likely), and its
    text.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobDict = dict[int, Logprob]
"""Log-probabilities at one position, by token id: the token itself first, then the most likely
ones.
"""


def logprob_dict(token: int, row: LogprobRow, text_of: Callable[[int], str]) -> LogprobDict:
    logprob, rank, best = row
    found = {token: Logprob(logprob, rank, text_of(token))}
    for place, (other, value) in enumerate(best, start=1):
        if other != token:
            found[other] = Logprob(value, place, text_of(other))
    return found


@dataclass(slots=True)
class CompletionOutput:
    """One continuation. `token_ids` includes the token that ended it; `text` does not.

    `stop_reason` is the stop string or stop token id; None for the model's own end token and at the
    length limit. `logprobs` and their sum are None unless requested.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[LogprobDict] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    lora_request: None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Timestamps of a request, in seconds of `time.monotonic`."""

    arrival_time: float
    queued_seconds: float = 0.0
    """Seconds from arrival until the first choice was scheduled."""
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """All continuations of one prompt. `prompt_logprobs[i]` is for prompt token i; the first entry
    is None, because no token precedes it. The list is None unless requested.
    """

    request_id: str
    prompt: str | None
    """The prompt's text, or that of a conversation as the chat template renders it; None if the
    prompt was given as token ids.
    """
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[LogprobDict | None] | None = None
    finished: bool = False
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    lora_request: None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    kv_transfer_params: None = None

    def take_prompt_rows(self, rows: Sequence[LogprobRow], text_of: Callable[[int], str]) -> None:
        """Set the prompt's log-probabilities from `rows`, which begin with its second token, once
        for all choices.
        """
        if self.prompt_logprobs is None:
            scored = zip(self.prompt_token_ids[1:], rows, strict=True)
            dicts = [logprob_dict(token, row, text_of) for token, row in scored]
            self.prompt_logprobs = [None, *dicts]
