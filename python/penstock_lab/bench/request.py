"""Requests and outcomes: plain data shared by all parts of the benchmark."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Message = Mapping[str, object]
Prompt = str | list[int] | list[Message]
"""Text, token ids, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Lengths are in tokens; `output_tokens` is `max_tokens`."""

    prompt: Prompt
    input_tokens: int
    output_tokens: int
    due: float = 0.0
    """Due time in seconds after the start of the load."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Additional body fields of this request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one request. Times are seconds after the start of the load; NaN if absent."""

    input_tokens: int
    """Prompt tokens reported by the server's usage, else as requested."""
    output_tokens: int
    """Output tokens reported by the server's usage, else the number of events with text."""
    asked: tuple[int, int]
    """Requested input and output tokens."""
    due: float
    sent: float
    connected: float
    """Time when its connection was established; before `due` for a keep-alive connection."""
    ended: float
    events: array[float]
    """Arrival times of SSE chunks with a choice, from the first one with part of the output."""
    reported: bool
    """Whether the server reported usage."""
    cached_tokens: int
    finish: str
    text: str
    failure: str
    """Kind of failure, or empty: connect, http_status, error_event, no_finish, short, malformed,
    timeout, interrupted, unsent.
    """
    detail: str
    resent: bool = False
    """Whether it was sent twice, because its keep-alive connection closed without a byte."""

    @property
    def success(self) -> bool:
        return not self.failure


@dataclass(frozen=True, slots=True)
class Load:
    """All outcomes of one run, in request order."""

    outcomes: Sequence[Outcome]
    duration: float
    """Seconds from the start to the last end."""
    client_cpu: float
    """CPU seconds of the client's thread."""
    partial: bool
    """Whether it was interrupted."""
