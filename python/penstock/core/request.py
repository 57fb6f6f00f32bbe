"""A client's request as the engine sees it: token ids and numbers, no text."""

from __future__ import annotations

import math
import struct
from array import array
from dataclasses import dataclass, field

from penstock.core.errors import InvalidValueError

MAX_LOGPROBS = 20
_SAMPLING = struct.Struct("<BfIfQIh")
"""`penstock_wire::SamplingParams`, version 1."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt. Neutral values are the defaults; greedy is `temperature=0`.

    `logprobs` and `prompt_logprobs` are -1 for none, else the number of alternatives (0..20).
    `choice` numbers the samples of one prompt and enters the random stream beside `seed`. Until
    `min_tokens` tokens exist a stop token counts as an ordinary token: it neither ends the request
    nor is it masked.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice: int = 0
    logprobs: int = -1
    prompt_logprobs: int = -1
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _within("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InvalidValueError(
                "temperature", self.temperature, "a finite number of at least 0"
            )
        _within("top_k", self.top_k, 0, 2**31 - 1)
        if not 0 < self.top_p <= 1:
            raise InvalidValueError("top_p", self.top_p, "a number in (0, 1]")
        _within("seed", self.seed, 0, 2**64 - 1)
        _within("choice", self.choice, 0, 2**32 - 1)
        _within("logprobs", self.logprobs, -1, MAX_LOGPROBS)
        _within("prompt_logprobs", self.prompt_logprobs, -1, MAX_LOGPROBS)


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to continue. `prompt` is an `array('i')`; `arrived` is read from the engine's
    clock.
    """

    id: int
    prompt: array[int]
    params: SamplingParams
    arrived: float = 0.0
    read_prefix_cache: bool = True
    cache_salt: bytes = field(default=b"", repr=False)
    grammar: int = 0
    """Grammar that constrains the output; 0 is none."""
    adapter: int = 0
    """Adapter applied to the weights; 0 is none."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidValueError("prompt", [], "at least one token id")

    @property
    def sampling(self) -> bytes:
        """Encoded sampling parameters, opaque to the engine."""
        p = self.params
        return _SAMPLING.pack(1, p.temperature, p.top_k, p.top_p, p.seed, p.choice, p.logprobs)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidValueError(name, value, f"an integer in {low}..{high}")
