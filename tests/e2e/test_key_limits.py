"""Limits of keys where a gateway stands before the replicas, real ones and modelled ones; and how
streams end that do not end well there.

Tried: streams of every API without usage, answers that clients leave, compressed ones asked for;
`own_cache` of two keys; a stream without a finish reason; a replica that hangs; a stop.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import Server, eventually
from tests.e2e.sim import Sim
from tests.limits import HANG

Json = dict[str, Any]

MODEL = "smollm2"
TOKENS = 12
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
USER = [{"role": "user", "content": "Count from one to a thousand, in words."}]
ENDLESS = {"model": MODEL, "max_tokens": TOKENS, "ignore_eos": True, "min_tokens": TOKENS}
BODIES: dict[str, Json] = {
    CHATS: {**ENDLESS, "messages": USER},
    COMPLETIONS: {**ENDLESS, "prompt": "One, two, three,"},
    MESSAGES: {**ENDLESS, "messages": USER},
    RESPONSES: {
        **{name: value for name, value in ENDLESS.items() if name != "max_tokens"},
        "max_output_tokens": TOKENS,
        "input": USER,
    },
}
OTHERS = {"/v1/embeddings": {"model": MODEL, "input": "word " * 80}}
KEYS = [
    *(f"{path}-{way}" for path in BODIES for way in ("whole", "stream", "left")),
    *OTHERS,
    "caches",
]


@pytest.fixture(scope="module")
def replicas(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys: list[Json] = [{"name": key, "key": key, "tokens_per_minute": 20} for key in KEYS]
    keys += [{"name": key, "key": key, "own_cache": True} for key in ("own-1", "own-2")]
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    flags = ("--served-model-name", MODEL, "--max-model-len", "1024")
    with serve("--replicas", "2", *flags, "--api-key-file", str(path)) as server:
        yield server


def client_of(server: Server, key: str) -> httpx.Client:
    return server.client(**{"authorization": f"Bearer {key}", "accept-encoding": "gzip, br"})


def leave(client: httpx.Client, path: str, body: Json, events: int) -> int:
    """Reads so many events of a stream and leaves it; the status."""
    with client.stream("POST", path, json=body) as response:
        if response.status_code == httpx.codes.OK:
            seen = 0
            for data in response.iter_raw():
                seen += data.count(b"data:")
                if seen >= events:
                    break
        return response.status_code


def until_idle(client: httpx.Client) -> None:
    """Until the gateway has no request, so that all of them are paid for."""
    idle = "gateway_requests_open{"

    def is_idle() -> bool:
        lines = client.get("/metrics").text.splitlines()
        return any(idle in line and line.endswith(" 0") for line in lines)

    eventually(is_idle, "an idle gateway")


@pytest.mark.parametrize("way", ["whole", "stream", "left"])
@pytest.mark.parametrize("path", BODIES)
def test_a_key_pays_whatever_it_asks_for(replicas: Server, path: str, way: str) -> None:
    """Some 15 to 50 tokens for each request, of 20 in a minute: on a busy machine, too, most are
    too many.
    """
    statuses = []
    with client_of(replicas, f"{path}-{way}") as client:
        for _ in range(6):
            body = {**BODIES[path], "stream": way != "whole"}
            if way == "left":
                statuses.append(leave(client, path, body, 8))
            else:
                statuses.append(client.post(path, json=body).status_code)
            until_idle(client)
    assert statuses[0] == 200
    assert set(statuses) == {200, 429}
    assert statuses.count(200) < 5, statuses


@pytest.mark.parametrize("path", OTHERS)
def test_other_endpoints_are_paid_for(replicas: Server, path: str) -> None:
    with client_of(replicas, path) as client:
        statuses = []
        for _ in range(6):
            statuses.append(client.post(path, json=OTHERS[path]).status_code)
            until_idle(client)
    assert statuses[0] == 200
    assert set(statuses) == {200, 429}
    assert statuses.count(200) < 5, statuses


def test_an_answer_that_is_not_waited_for_is_paid_for(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "a", "key": "a", "tokens_per_minute": 30}]}))
    with (
        Sim("--served-model-name", MODEL, "--fault", "slow-headers:1:30") as sim,
        Gateway("--backend", sim.url, "--api-key-file", str(keys)) as gateway,
        gateway.client(authorization="Bearer a") as client,
    ):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 200}
        with pytest.raises(httpx.ReadTimeout):
            client.post(COMPLETIONS, json=body, timeout=2)
        until_idle(client)
        assert client.post(COMPLETIONS, json=body).status_code == 429


def cached(usage: Json) -> int:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0)


def test_caches_of_keys_are_apart(replicas: Server) -> None:
    """The first request of each key finds nothing, its second one does."""
    long = [{"role": "user", "content": "A long text of many words. " * 20}]
    bodies = {
        CHATS: {"model": MODEL, "max_tokens": 1, "messages": long},
        COMPLETIONS: {"model": MODEL, "max_tokens": 1, "prompt": long[0]["content"]},
        MESSAGES: {"model": MODEL, "max_tokens": 1, "system": "Be brief.", "messages": long},
        RESPONSES: {"model": MODEL, "max_output_tokens": 1, "instructions": "x", "input": long},
    }
    for path, body in bodies.items():
        counts = []
        for key in ("own-1", "own-2", "own-1", "own-2"):
            with client_of(replicas, key) as client:
                answer = client.post(path, json={**body, "cache_salt": "mine"})
            assert answer.status_code == 200, answer.text
            counts.append(cached(answer.json()["usage"]))
        assert counts[:2] == [0, 0], (path, counts)
        assert all(count > 100 for count in counts[2:]), (path, counts)


def events_of(client: httpx.Client, path: str, body: Json) -> list[str]:
    """The events of a stream as its bytes say; the body ends in good order."""
    with client.stream("POST", path, json={**body, "stream": True}, timeout=HANG) as response:
        assert response.status_code == 200, response.read()
        text = b"".join(response.iter_raw()).decode()
    assert text.endswith("\n\n")
    return text.removesuffix("\n\n").split("\n\n")


def test_a_stream_without_its_end_is_an_error() -> None:
    with (
        Sim("--profile", "instant", "--served-model-name", MODEL, "--fault", "no-finish") as sim,
        Gateway("--backend", sim.url) as gateway,
        gateway.client() as client,
    ):
        body = {"model": MODEL, "max_tokens": 6, "messages": USER}
        *_, error, done = events_of(client, CHATS, body)
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert done == "data: [DONE]"


def test_a_hung_stream_that_cannot_move_ends(serve: Serve) -> None:
    flags = ("--served-model-name", MODEL, "--max-model-len", "1024")
    with (
        serve(*flags) as server,
        Gateway("--backend", server.url) as gateway,
        gateway.client() as client,
    ):
        body = {**BODIES[CHATS], "max_tokens": 900, "min_tokens": 900, "n": 2}
        with client.stream("POST", CHATS, json={**body, "stream": True}) as response:
            data = response.iter_raw()
            text = next(data)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                text += b"".join(data)
            finally:
                os.kill(server.pid, signal.SIGCONT)
        *_, error, done = text.decode().removesuffix("\n\n").split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert done == "data: [DONE]"


@pytest.mark.parametrize("path", BODIES)
def test_streams_that_the_end_cuts_short_say_so(serve: Serve, path: str) -> None:
    """At a server, and at a gateway that ends before its replica."""
    flags = ("--served-model-name", MODEL, "--shutdown-timeout", "1")
    body = {**BODIES[path], "stream": True, "min_tokens": 4000}
    body |= {name: 4000 for name in ("max_tokens", "max_output_tokens") if name in body}
    with serve(*flags) as server:
        gateway = Gateway("--backend", server.url, "--shutdown-timeout", "1")
        for command in (gateway, server):
            command.wait_ready()
            with command.client() as client, client.stream("POST", path, json=body) as response:
                data = response.iter_raw()
                text = next(data)
                command.signal(signal.SIGTERM)
                text += b"".join(data)
            assert command.process.wait(HANG) == 0, command.text()
            *_, last = text.decode().removesuffix("data: [DONE]\n\n").rstrip().split("\n\n")
            assert '"error"' in last, last
            assert "shutting down" in last


def test_a_stream_is_whole_or_an_error() -> None:
    """With replicas that do several kinds of harm."""
    faults = [word for fault in ("no-finish:0.3", "cut:0.3:3") for word in ("--fault", fault)]
    with (
        Sim("--profile", "instant", "--served-model-name", MODEL, *faults, replicas=2) as sim,
        Gateway(*(word for url in sim.urls for word in ("--backend", url))) as gateway,
        gateway.client() as client,
    ):
        body = {"model": MODEL, "max_tokens": 6, "messages": USER}
        for _ in range(60):
            with client.stream("POST", CHATS, json={**body, "stream": True}) as response:
                text = b"".join(response.iter_raw()).decode()
            if response.status_code == 200:
                is_whole = '"finish_reason":"' in text
                assert is_whole != ("engine_failed" in text), text
                assert text.endswith("data: [DONE]\n\n")
            else:
                assert response.status_code == 503
