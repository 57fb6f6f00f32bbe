"""Requests and outcomes: plain data that every part of the benchmark shares."""

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
    """Due time, seconds after the start of the load."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """More fields of the body, for this request only."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one request. Times are seconds after the start of the load; NaN: absent."""

    input_tokens: int
    """Prompt tokens by the server's usage, else as requested."""
    output_tokens: int
    """Output tokens by the server's usage, else the events with text."""
    asked: tuple[int, int]
    """Input and output tokens that were requested."""
    due: float
    sent: float
    connected: float
    """When its connection was established; before `due` for a kept one."""
    ended: float
    events: array[float]
    """Receipt times of the SSE chunks with a choice, from the first with a part of the output."""
    reported: bool
    """Whether the server reported usage."""
    cached_tokens: int
    finish: str
    text: str
    failure: str
    """Empty, or the kind of failure: connect, http_status, error_event, no_finish, short,
    malformed, timeout, interrupted, unsent.
    """
    detail: str
    resent: bool = False
    """Whether it was sent twice, the first time to a kept connection that ended without a byte."""

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
