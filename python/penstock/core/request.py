"""A client's request in the engine's form: token ids and numbers, no text."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core.errors import InvalidValueError

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """Parameters of a request that the scheduler needs.

    `prompt_logprobs` is -1 for none, else the number of alternatives (0 to 20). Stop tokens do not
    end the request before it has `min_tokens` tokens; the sampler suppresses the stop tokens that
    it is given.
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
    """One sequence to continue. `prompt` is an `array('i')`; `arrived` is the engine's clock time
    in seconds.
    """

    id: int
    prompt: array[int]
    params: GenerationParams
    arrived: float = 0.0
    read_prefix_cache: bool = True
    pool: bool = False
    """Return the pooled hidden state of the prompt, and sample no token."""
    expires: bool = False
    """Whether the request ends as REJECTED if it has not started within the engine's maximum queue
    time.
    """
    cache_salt: bytes = field(default=b"", repr=False)
    sampling: bytes = field(default=b"", repr=False)
    """Encoded sampling parameters, opaque to the engine."""
    needs_history: bool = False
    """Whether the sampler needs the sequence's tokens. A grammar always needs them."""
    grammar: bytes = field(default=b"", repr=False)
    """Encoded grammar that constrains the output, opaque to the engine; empty for none."""
    adapter: int = 0
    """Number of the adapter that is applied to the weights; 0 for none."""
    priority: int = 0
    """Lower values are scheduled first, if the scheduler uses priorities."""
    resumed: int = 0
    """Number of tokens at the end of `prompt` that are the output of an earlier run, which was
    interrupted.
    """

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidValueError("prompt", [], "at least one token id")
        most = min(len(self.prompt), self.params.max_tokens) - 1
        check_range("resumed", self.resumed, 0, most)


def check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidValueError(name, value, f"an integer in {low}..{high}")
