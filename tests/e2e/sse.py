"""A stream of server-sent events as its bytes say, without a client library's forgiveness."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

Json = dict[str, Any]


class Stream:
    """The events of one response: JSON objects; `done` once `[DONE]` has come."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.done = False
        self._events = self._parse()

    def _parse(self) -> Iterator[Json]:
        rest = b""
        for data in self.response.iter_raw():
            *whole, rest = (rest + data).split(b"\n\n")
            for event in whole:
                assert event.startswith(b"data: "), event
                assert b"\n" not in event, event
                assert not self.done, "something came after [DONE]"
                if event == b"data: [DONE]":
                    self.done = True
                else:
                    yield json.loads(event.removeprefix(b"data: "))
        assert rest == b"", rest

    def __iter__(self) -> Iterator[Json]:
        return self._events

    def take(self, count: int) -> list[Json]:
        """The next events; fails when the stream ends before."""
        return [next(self._events) for _ in range(count)]


@contextmanager
def stream(client: httpx.Client, path: str, body: Json) -> Iterator[Stream]:
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
        assert response.status_code == httpx.codes.OK, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


def whole(client: httpx.Client, path: str, body: Json) -> list[Json]:
    """All events of a stream that must end with `[DONE]`."""
    with stream(client, path, body) as events:
        found = list(events)
        assert events.done
    return found


def text(events: list[Json]) -> str:
    """What the first choice of a stream says, of either endpoint."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == 0]
    deltas = [choice.get("delta", {}).get("content", choice.get("text", "")) for choice in choices]
    return "".join(deltas)


def post(client: httpx.Client, path: str, body: Json) -> Json:
    """The answer to a request that must succeed."""
    response = client.post(path, json=body)
    assert response.status_code == httpx.codes.OK, response.text
    answer: Json = response.json()
    return answer


def complete(
    client: httpx.Client, prompt: str | list[int], max_tokens: int, **more: object
) -> Json:
    """The first choice of a completion: greedy unless `more` says otherwise."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    choice: Json = post(client, "/v1/completions", body)["choices"][0]
    return choice


@dataclass
class Completion:
    """A streamed completion, as far as it came."""

    status: int
    refusal: httpx.Response | None = None
    """Read, where there is no stream."""
    text: str = ""
    first: float = math.nan
    """Monotonic clock at the first event, seconds."""
    finishes: int = 0
    errors: tuple[Json, ...] = ()
    done: bool = False

    @property
    def end(self) -> str:
        """How it ended: `finished`, `failed` or the status of the refusal."""
        if self.refusal is not None:
            return str(self.status)
        assert self.done, "no [DONE]"
        assert self.finishes + len(self.errors) == 1, (self.finishes, self.errors)
        return "finished" if self.finishes else "failed"


async def completion(
    client: httpx.AsyncClient, body: Json, leave_after: int | None = None
) -> Completion:
    """Streams a completion; nothing may follow `[DONE]`. `leave_after` closes the connection after
    so many events.
    """
    request = {**body, "stream": True}
    async with client.stream("POST", "/v1/completions", json=request) as answer:
        found, events = Completion(answer.status_code), 0
        if answer.status_code != httpx.codes.OK:
            await answer.aread()
            found.refusal = answer
            return found
        async for line in answer.aiter_lines():
            if not line:
                continue
            assert not found.done, "an event after the end"
            events += 1
            if events == 1:
                found.first = time.monotonic()
            if leave_after is not None and events >= leave_after:
                break
            if line == "data: [DONE]":
                found.done = True
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                found.errors += (event["error"],)
                continue
            for choice in event["choices"]:
                found.text += choice["text"]
                found.finishes += choice["finish_reason"] is not None
    return found
