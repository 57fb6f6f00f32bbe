"""Answers through a real Envoy that asks the picker: refused for saturation, with trailers, reset
in their middle.
"""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.e2e.echo import FULL, Echo
from tests.e2e.envoy import Envoy, Parts
from tests.e2e.gateway import Picker
from tests.e2e.server import eventually
from tests.e2e.test_extproc import MODES, endings, is_empty
from tests.limits import HANG

BODY = {"model": "echo", "prompt": "x"}
QUESTION = json.dumps(BODY).encode()


def test_sheddable_requests_are_refused_while_the_pool_is_saturated(tmp_path: Path) -> None:
    with ExitStack() as stack:
        echo = stack.enter_context(Echo(metrics=FULL))
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f"pools: [{{name: p, backends: [{echo.url}]}}]\n"
            "objectives: [{name: batch, priority: -1}, {name: chat, priority: 1}]"
        )
        picker = stack.enter_context(Picker("--config", str(file)))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [echo.url]))
        client = stack.enter_context(envoy.client())
        proxy = stack.enter_context(picker.client())

        def ask(door: httpx.Client, objective: str) -> httpx.Response:
            headers = {"x-gateway-inference-objective": objective}
            return door.post("/v1/completions", json=BODY, headers=headers)

        eventually(lambda: ask(client, "batch").status_code == 429, "the report")
        reached = len(echo.seen)
        refused, own = ask(client, "batch"), ask(proxy, "batch")
        assert refused.status_code == own.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json() == own.json()
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        assert len(echo.seen) == reached
        for objective in ("chat", "unknown"):
            assert ask(client, objective).status_code == 200
        assert len(echo.seen) == reached + 2
        echo.metrics = FULL.replace(" 9\n", " 0\n").replace("0.9", "0.1")
        eventually(lambda: ask(client, "batch").status_code == 200, "room")


def whole_answer(url: str) -> bytes:
    """An answer as its bytes are, trailers included."""
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(QUESTION)}\r\n"
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HANG) as connection:
        connection.sendall(head.encode() + b"connection: close\r\nte: trailers\r\n\r\n" + QUESTION)
        return connection.makefile("rb").read()


@pytest.mark.parametrize(("request_mode", "answer_mode"), MODES)
def test_trailers_of_answers_arrive(tmp_path: Path, request_mode: str, answer_mode: str) -> None:
    def change(parts: Parts) -> None:
        parts.modes.update(request_body_mode=request_mode, response_body_mode=answer_mode)
        trailers = {"enable_trailers": True}
        parts.manager["http_protocol_options"] = trailers
        kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        parts.replicas["typed_extension_protocol_options"] = {
            kind: {
                "@type": f"type.googleapis.com/{kind}",
                "explicit_http_config": {"http_protocol_options": trailers},
            }
        }

    with ExitStack() as stack:
        echo = stack.enter_context(Echo(trailers={"x-checksum": "17", "x-took": "3"}))
        picker = stack.enter_context(Picker("--backend", echo.url))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, [echo.url], change))
        head, _, chunks = whole_answer(envoy.url).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        chunked, _, trailers = chunks.partition(b"\r\n0\r\n")
        body = b"".join(chunked.split(b"\r\n")[1::2])
        assert json.loads(body) == {"model": "echo", "bytes": len(QUESTION)}
        assert sorted(trailers.split()) == [b"17", b"3", b"x-checksum:", b"x-took:"]
        eventually(lambda: is_empty(picker), "the end of the request")
        assert endings(picker) == {"served": 1}


@pytest.mark.parametrize("answer_mode", ["FULL_DUPLEX_STREAMED", "STREAMED"])
def test_an_answer_that_is_reset_in_its_middle_ends_so_at_the_client(
    tmp_path: Path, answer_mode: str
) -> None:
    def change(parts: Parts) -> None:
        parts.modes.update(response_body_mode=answer_mode)

    with ExitStack() as stack:
        breaks, sound = stack.enter_context(Echo(("a",), breaks=True)), stack.enter_context(Echo())
        urls = [breaks.url, sound.url]
        file = tmp_path / "gateway.yaml"
        listed = ", ".join(f"{{name: p{at}, backends: [{url}]}}" for at, url in enumerate(urls))
        file.write_text(f"pools: [{listed}]")
        picker = stack.enter_context(Picker("--config", str(file)))
        envoy = stack.enter_context(Envoy(tmp_path, picker.picker_url, urls, change))
        client = stack.enter_context(envoy.client())
        received: list[bytes] = []
        with client.stream("POST", "/v1/completions", json={**BODY, "model": "a"}) as answer:
            assert answer.status_code == 200
            parts = answer.iter_raw()
            with pytest.raises(httpx.RemoteProtocolError):
                received.extend(parts)
        assert b'{"model": "a"'.startswith(b"".join(received)), received
        assert len(breaks.seen) == 1, "it was sent again behind its header"
        eventually(lambda: is_empty(picker), "the end of the request")
        # the next request finds everything in order
        assert client.post("/v1/completions", json=BODY).status_code == 200
        eventually(lambda: is_empty(picker), "the end of the next request")
        assert endings(picker) == {"client_gone": 1, "served": 1}
