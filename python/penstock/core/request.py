"""A client's request as the engine sees it: token ids and numbers, no text."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core.errors import InvalidValueError

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What scheduling needs of a request.

    `prompt_logprobs` is -1 for none, else the number of alternatives (0..20). Until `min_tokens`
    tokens exist a stop token does not end the request; the sampler suppresses those it is given.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    prompt_logprobs: int = -1
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
        check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        check_range("prompt_logprobs", self.prompt_logprobs, -1, MAX_LOGPROBS)


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to continue. `prompt` is an `array('i')`; `arrived` is read from the engine's
    clock.
    """

    id: int
    prompt: array[int]
    params: GenerationParams
    arrived: float = 0.0
    read_prefix_cache: bool = True
    pool: bool = False
    """End with the pooled hidden state of the prompt, without a token."""
    expires: bool = False
    """End as REJECTED after the engine's longest wait, if it has not begun by then."""
    cache_salt: bytes = field(default=b"", repr=False)
    sampling: bytes = field(default=b"", repr=False)
    """Encoded sampling parameters, opaque to the engine."""
    needs_history: bool = False
    """Whether the sampler needs the tokens of the sequence; with a grammar it does too."""
    grammar: bytes = field(default=b"", repr=False)
    """What the output must match, encoded and opaque to the engine; empty is anything."""
    adapter: int = 0
    """Adapter applied to the weights; 0 is none."""
    priority: int = 0
    """Lower ones are computed first, where the scheduler goes by priority."""
    resumed: int = 0
    """How many of `prompt`, its last, are the output of a run that was cut off."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidValueError("prompt", [], "at least one token id")
        most = min(len(self.prompt), self.params.max_tokens) - 1
        check_range("resumed", self.resumed, 0, most)


def check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidValueError(name, value, f"an integer in {low}..{high}")
