"""A stream of server-sent events as its bytes say, without a client library's forgiveness."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
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
