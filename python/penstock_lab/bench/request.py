"""Requests and their outcomes, as plain data for all modules of the benchmark."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Message = Mapping[str, object]
Prompt = str | list[int] | list[Message]
"""Text, token ids, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Lengths are in tokens; `output_tokens` is sent as `max_tokens`."""

    prompt: Prompt
    input_tokens: int
    output_tokens: int
    due: float = 0.0
    """Due time in seconds after the start of the load."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Additional fields in the JSON body of this request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one request. Times are seconds after the start of the load; NaN if absent."""

    input_tokens: int
    """Prompt tokens that the server's usage data reports; without it, the requested number."""
    output_tokens: int
    """Output tokens that the server's usage data reports; without it, the number of events with
    text.
    """
    asked: tuple[int, int]
    """Requested input and output tokens."""
    due: float
    sent: float
    connected: float
    """When its connection was established. For a reused (keep-alive) connection this may be before
    `due`.
    """
    ended: float
    events: array[float]
    """Arrival times of SSE events with a choice, starting with the first one that has output."""
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
    """Whether it was sent twice, because its keep-alive connection closed before the answer began.
    """

    @property
    def success(self) -> bool:
        return not self.failure


@dataclass(frozen=True, slots=True)
class Load:
    """All outcomes of one run, in request order."""

    outcomes: Sequence[Outcome]
    duration: float
    """Seconds from the start of the load to the end of the last request."""
    client_cpu: float
    """CPU seconds of the load generator's thread."""
    partial: bool
    """Whether the run was interrupted."""
