"""Streams that go on by their text: real engines behind fronts that hide their marks, as servers
other than Penstock have none, and that break off.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.page import example, placed
from tests.e2e.server import Server, metric
from tests.limits import HANG

Json = dict[str, Any]
ASK = "Write a long story about the number seven."
STORY = "Once upon a time, in a small village by the sea, there lived"
TOKENS = 32
CHAT: Json = {"messages": [{"role": "user", "content": ASK}]}


class Front:
    """A server before an engine; streams of its next requests break off behind so many lines."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.breaks: list[int] = []
        self.bodies: list[Json] = []

    def __enter__(self) -> Self:
        front = self

        class Handler(_Handler):
            owner = front

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    owner: Front

    def do_GET(self) -> None:
        answer = httpx.get(f"{self.owner.engine}{self.path}", timeout=HANG)
        self._header(answer)
        self.wfile.write(answer.content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.owner.bodies.append(json.loads(body))
        breaks = self.owner.breaks.pop(0) if self.owner.breaks else None
        url = f"{self.owner.engine}{self.path}"
        kind = {"content-type": "application/json"}
        with httpx.stream("POST", url, content=body, headers=kind, timeout=HANG) as answer:
            self.protocol_version = "HTTP/1.1"
            self._header(answer, chunked=True)
            for number, line in enumerate(answer.iter_lines()):
                if number == breaks:
                    self.wfile.flush()
                    self.close_connection = True
                    return
                self._chunk(f"{line}\n".encode())
            self._chunk(b"")
        self.close_connection = True

    def _chunk(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def _header(self, answer: httpx.Response, chunked: bool = False) -> None:
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers["content-type"])
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing: the test says what matters."""


@pytest.fixture(scope="module")
def engine(serve: Serve) -> Iterator[Server]:
    with serve("--served-model-name", "smollm2") as started:
        yield started


def events(client: httpx.Client, path: str, more: Json) -> list[Json]:
    body = {
        "model": "smollm2",
        "temperature": 0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    payloads = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]]


def read(stream: list[Json]) -> tuple[str, list[str], Json]:
    """Text, reasons of the end, and usage; ids and roles are those of one answer."""
    assert len({event["id"] for event in stream}) == 1
    assert len({event["created"] for event in stream}) == 1
    choices = [choice for event in stream for choice in event["choices"]]
    deltas = [choice["delta"] for choice in choices if "delta" in choice]
    assert sum("role" in delta for delta in deltas) in (0, 1)
    text = "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices
    )
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    usage = stream[-1]["usage"]
    usage.pop("prompt_tokens_details", None)
    return text, ends, usage


@pytest.mark.parametrize(
    ("path", "more"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": STORY})],
)
def test_a_stream_goes_on_behind_its_text(
    engine: Server, tmp_path: Path, path: str, more: Json
) -> None:
    with ExitStack() as stack:
        fronts = [stack.enter_context(Front(engine.url)) for _ in range(2)]
        config = tmp_path / "gateway.yaml"
        config.write_text(placed(example("Failover by text"), [front.url for front in fronts]))
        gateway = stack.enter_context(Gateway("--config", str(config)))
        client = stack.enter_context(gateway.client())
        direct = stack.enter_context(engine.client())
        expected = read(events(direct, path, more))
        assert expected[1] == ["length"]
        for breaks in (5, 12, 24):
            for front in fronts:
                front.breaks = [breaks]
                front.bodies.clear()
            # both break off once, one after the other
            assert read(events(client, path, more)) == expected, breaks
            bodies = [body for front in fronts for body in front.bodies]
            assert len(bodies) == 3
        assert metric(client, "penstock:gateway_failover_seconds_count") == 6
