"""Beam search by means of `generate`: each round computes the most likely next tokens of every
beam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.core import InvalidValueError
from penstock.core.request import MAX_LOGPROBS
from penstock.llm.arguments import check_fields, checked_class
from penstock.llm.outputs import LogprobDict

MOST_BEAMS = MAX_LOGPROBS // 2


@checked_class()
@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of a beam search. `beam_width` is at most 10, because twice that number of next
    tokens is considered, and log-probabilities are limited to 20. Scores are sums of
    log-probabilities divided by length ** length_penalty.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.beam_width <= MOST_BEAMS:
            raise InvalidValueError("beam_width", self.beam_width, f"1..{MOST_BEAMS}")
        if self.max_tokens < 1:
            raise InvalidValueError("max_tokens", self.max_tokens, "at least 1")
        if self.temperature != 0:
            raise InvalidValueError("temperature", self.temperature, "0: beams are not drawn")


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam: prompt and continuation. `logprobs` and `cum_logprob` cover only the
    continuation.
    """

    tokens: list[int]
    logprobs: list[LogprobDict]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    sequences: list[BeamSearchSequence]
    """The best sequences, best first, at most `beam_width` of them."""


Best = Callable[[Sequence[list[int]], int], list[LogprobDict]]
"""Function that returns, for each list of token ids, the given number of most likely next tokens
with their log-probabilities.
"""


@dataclass(slots=True)
class Beams:
    """The search from one prompt."""

    prompt_len: int
    open: list[BeamSearchSequence]
    ended: list[BeamSearchSequence]

    def grow(
        self, found: Sequence[LogprobDict], params: BeamSearchParams, eos: frozenset[int]
    ) -> None:
        grown: list[BeamSearchSequence] = []
        for beam, row in zip(self.open, found, strict=True):
            for token, scored in row.items():
                total = beam.cum_logprob + scored.logprob
                logprobs = [*beam.logprobs, row]
                if token in eos and not params.ignore_eos:
                    kept = [token] if params.include_stop_str_in_output else []
                    tokens = [*beam.tokens, *kept]
                    self.ended.append(BeamSearchSequence(tokens, logprobs, total, None, "stop"))
                else:
                    grown.append(BeamSearchSequence([*beam.tokens, token], logprobs, total))
        grown.sort(key=lambda beam: self.score(beam, params), reverse=True)
        self.open = grown[: params.beam_width]

    def score(self, beam: BeamSearchSequence, params: BeamSearchParams) -> float:
        return beam.cum_logprob / math.pow(max(len(beam.logprobs), 1), params.length_penalty)

    def best(self, params: BeamSearchParams) -> list[BeamSearchSequence]:
        for beam in self.open:
            beam.finish_reason = "length"
        every = sorted(
            [*self.ended, *self.open], key=lambda beam: self.score(beam, params), reverse=True
        )
        return every[: params.beam_width]


def search(
    prompts: Sequence[list[int]], params: BeamSearchParams, eos: frozenset[int], best: Best
) -> list[BeamSearchOutput]:
    """Search from all prompts (token ids) at once, one round of `best` for each token."""
    searches = [Beams(len(ids), [BeamSearchSequence(ids, [])], []) for ids in prompts]
    for _ in range(params.max_tokens):
        every = [beam.tokens for each in searches for beam in each.open]
        if not every:
            break
        found = iter(best(every, 2 * params.beam_width))
        for each in searches:
            each.grow([next(found) for _ in each.open], params, eos)
    return [BeamSearchOutput(each.best(params)) for each in searches]
