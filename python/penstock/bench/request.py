"""What is asked of a server and what came of it: plain data that every part of the benchmark
shares.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Message = Mapping[str, object]
Prompt = str | list[int] | list[Message]
"""Text, token ids, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Lengths are tokens; `output_tokens` is `max_tokens`."""

    prompt: Prompt
    input_tokens: int
    output_tokens: int
    due: float = 0.0
    """Seconds after the start of the load at which it is to be sent."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """More fields of the body, for this request only."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one request. Times are seconds after the start of the load; NaN: it did not
    happen.
    """

    input_tokens: int
    """Tokens in the prompt: what the server counted, else what was asked."""
    output_tokens: int
    """Tokens in the answer: what the server counted, else the events that carried text."""
    asked: tuple[int, int]
    """Input and output tokens of the request."""
    due: float
    sent: float
    connected: float
    """When the connection that carried it was there; before `due` for one that was kept open."""
    ended: float
    events: array[float]
    """Receipt times of the SSE chunks that carried a choice."""
    reported: bool
    """Whether the server reported usage."""
    cached_tokens: int
    finish: str
    text: str
    failure: str
    """Empty, or the kind of failure: connect, http_status, error_event, no_finish, short,
    malformed, timeout, interrupted, unsent."""
    detail: str

    @property
    def success(self) -> bool:
        return not self.failure


@dataclass(frozen=True, slots=True)
class Load:
    """All outcomes of one run, in the order of the requests."""

    outcomes: Sequence[Outcome]
    duration: float
    """Seconds from the start to the last end."""
    client_cpu: float
    """CPU seconds of the client's thread."""
    partial: bool
    """Whether it was interrupted."""
