"""Load generators without a network: one plays answers under a virtual clock, one has them
recorded.

`PlayedRun` holds its user to the contract of `LoadRun`: due times ascend, nothing is added after
`close`, `take` comes after the end.
"""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CODES = {
    **dict.fromkeys(("due", "sent", "connected", "ended", "event_times"), "d"),
    "status": "H",
    "resent": "B",
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), "q"),
    **dict.fromkeys(("event_counts", "text_events"), "I"),
}


class ContractBrokenError(AssertionError):
    pass


def require(condition: bool, fault: str) -> None:
    if not condition:
        raise ContractBrokenError(fault)


def as_taken(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as lists, with None for NaN, in the form of `LoadRun.take`."""
    taken = dict(columns)
    for name, code in CODES.items():
        values = [math.nan if value is None else value for value in columns[name]]
        taken[name] = array(code, values).tobytes()
    return taken


@dataclass(frozen=True)
class Answer:
    """What the server does with one request. Times are seconds after it was sent."""

    events: Sequence[float] = (0.1, 0.2)
    ends: float = 0.2
    prompt_tokens: int = -1
    completion_tokens: int = -1
    cached_tokens: int = -1
    status: int = 200
    failure: str = ""
    detail: str = ""


Serve = Callable[[int, dict[str, Any]], Answer]
"""Number and body of a request to what becomes of it."""


def exact(_index: int, body: dict[str, Any]) -> Answer:
    """The prompt's words and as many tokens as were asked for, 10 ms apart."""
    asked = body.get("max_tokens") or body["max_completion_tokens"]
    events = [0.05 + 0.01 * token for token in range(asked)]
    return Answer(
        events,
        events[-1],
        prompt_tokens=len(str(body.get("prompt")).split()),
        completion_tokens=asked,
    )


@dataclass
class _Request:
    due: float
    must_produce: int
    body: bytes
    answer: Answer | None = None
    sent: float = math.nan
    ended: float = math.nan
    failure: str = ""
    events: list[float] = field(default_factory=list)


class PlayedRun:
    """The clock goes on by what is waited for. `moments` are called when the clock reaches their
    time.
    """

    def __init__(
        self,
        description: str,
        serve: Serve = exact,
        moments: Mapping[float, Callable[[], None]] | None = None,
    ) -> None:
        self.target = json.loads(description)
        self.now = math.nan
        self.most_ahead = 0
        """Bytes that waited at one time, at most."""
        self.waiting_bytes = 0
        self._serve = serve
        self._moments = sorted((moments or {}).items(), key=lambda item: item[0])
        self._requests: list[_Request] = []
        self._next = 0
        self._open: list[tuple[float, int]] = []
        self._closed = False
        self._stopped = False

    def add(self, requests: list[tuple[float, int, bytes]]) -> None:
        require(not self._closed, "add after close")
        for due, must_produce, body in requests:
            require(due >= (self._requests[-1].due if self._requests else 0.0), "due times descend")
            self._requests.append(_Request(due, must_produce, body))
            self.waiting_bytes += len(body)
        self.most_ahead = max(self.most_ahead, self.waiting_bytes)

    def start(self) -> None:
        require(math.isnan(self.now), "started twice")
        self.now = 0.0

    def close(self) -> None:
        self._closed = True

    def stop(self) -> None:
        self._stopped = True
        for _, index in self._open:
            request = self._requests[index]
            request.failure, request.ended = "interrupted", self.now
            request.events = [moment for moment in request.events if moment <= self.now]
        self._open = []
        for request in self._requests[self._next :]:
            request.failure = "unsent"
        self._next = len(self._requests)

    def wait(self, seconds: float) -> bool:
        require(not math.isnan(self.now), "wait before start")
        until = self.now + seconds
        while self._moments and self._moments[0][0] <= until:
            moment, call = self._moments.pop(0)
            self._advance(moment)
            call()
        self._advance(until)
        return (
            (self._closed or self._stopped) and not self._open and self._next == len(self._requests)
        )

    def _advance(self, until: float) -> None:
        limit = self.target["max_concurrency"] or math.inf
        while True:
            ends = self._open[0][0] if self._open else math.inf
            waits = self._next < len(self._requests) and len(self._open) < limit
            due = max(self._requests[self._next].due, self.now) if waits else math.inf
            if min(ends, due) > until:
                break
            self.now = min(ends, due)
            if ends <= due:
                heapq.heappop(self._open)
            else:
                self._send()
        self.now = until

    def _send(self) -> None:
        request = self._requests[self._next]
        answer = self._serve(self._next, json.loads(request.body))
        request.answer, request.sent, request.failure = answer, self.now, answer.failure
        request.ended = self.now + answer.ends
        request.events = [self.now + event for event in answer.events]
        if not request.failure and 0 <= answer.completion_tokens < request.must_produce:
            request.failure = "short"
        heapq.heappush(self._open, (request.ended, self._next))
        self.waiting_bytes -= len(request.body)
        self._next += 1

    def progress(self) -> dict[str, int]:
        open_now = {index for _, index in self._open}
        ended = [r for index, r in enumerate(self._requests[: self._next]) if index not in open_now]
        return {
            "added": len(self._requests),
            "sent": sum(not math.isnan(request.sent) for request in self._requests),
            "open": len(open_now),
            "completed": sum(not request.failure for request in ended),
            "failed": sum(bool(request.failure) for request in ended),
            "events": sum(moment <= self.now for r in self._requests for moment in r.events),
            "bytes": 0,
        }

    def take(self) -> dict[str, Any]:
        require(not self._open and self._next == len(self._requests), "take before the end")
        played, silent = self._requests, Answer(())
        answers = [request.answer or silent for request in played]
        whole = [a if not r.failure else silent for a, r in zip(answers, played, strict=True)]
        columns = {
            "due": [request.due for request in played],
            **{name: [getattr(request, name) for request in played] for name in ("sent", "ended")},
            "connected": [request.sent for request in played],
            "resent": [False for _ in played],
            "status": [
                answer.status if request.answer else 0
                for answer, request in zip(answers, played, strict=True)
            ],
            **{
                name: [getattr(a, name) for a in whole]
                for name in CODES
                if name.endswith("_tokens")
            },
            "event_counts": [len(request.events) for request in played],
            "event_times": [moment for request in played for moment in request.events],
            "text_events": [len(request.events) for request in played],
            "failure": [request.failure for request in played],
            "detail": [answer.detail for answer in answers],
            "finish": ["" if request.failure else "length" for request in played],
            "text": [
                "x" * len(request.events) if self.target["keep_text"] else "" for request in played
            ],
        }
        ends = [request.ended for request in played if not math.isnan(request.ended)]
        return {**as_taken(columns), "duration": max(ends, default=0.0), "cpu_s": 0.0}


class RecordedRun:
    """Ends at once with the columns of a file of tests/golden/bench."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns
        self.added: list[tuple[float, int, bytes]] = []

    def add(self, requests: list[tuple[float, int, bytes]]) -> None:
        self.added += requests

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def wait(self, _seconds: float) -> bool:
        return True

    def progress(self) -> dict[str, int]:
        counts = ("added", "sent", "open", "completed", "failed", "events", "bytes")
        return dict.fromkeys(counts, 0)

    def take(self) -> dict[str, Any]:
        return {**as_taken(self.columns), "cpu_s": 0.0}
