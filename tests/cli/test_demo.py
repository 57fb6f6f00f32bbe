"""The demo's client against a server that says what the test wants."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from penstock.cli import demo, local_server
from penstock.config.machine import free_port
from penstock.core import PenstockError

EVENTS = b"""data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}

data: {"choices": [{"delta": {"content": "Par"}}]}

data: {"choices": [{"delta": {"content": "is."}}]}

data: {"choices": [], "usage": {"completion_tokens": 3}}

data: [DONE]

"""


class Handler(BaseHTTPRequestHandler):
    answer = EVENTS
    status = 200

    def do_GET(self) -> None:
        self._reply(b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(self.answer)

    def _reply(self, body: bytes) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def handler() -> type[Handler]:
    return type("Own", (Handler,), {})


@pytest.fixture
def port(handler: type[Handler]) -> Iterator[int]:
    server = HTTPServer((local_server.HOST, 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_answer_is_printed_and_measured(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    answer = demo.ask(port, "Where?")
    assert capsys.readouterr().out == "Paris."
    assert (answer.tokens, len(answer.arrivals)) == (3, 2)
    assert demo.Answer(1.0, [1.05, 1.25], 3).line() == "TTFT 50 ms, 10 tokens/s"


def test_an_error_in_the_stream_is_an_error(port: int, handler: type[Handler]) -> None:
    handler.answer = b'data: {"error": {"message": "the engine was lost"}}\n\n'
    with pytest.raises(PenstockError, match="the engine was lost"):
        demo.ask(port, "Where?")


def test_a_refusal_is_an_error(port: int, handler: type[Handler]) -> None:
    handler.status = 503
    assert not local_server.is_ready(port)
    with pytest.raises(PenstockError, match="answered 503"):
        demo.ask(port, "Where?")


def test_an_answer_without_text_is_an_error() -> None:
    with pytest.raises(PenstockError, match="answered nothing"):
        demo.Answer(0.0).line()


def test_ready_means_that_somebody_answers(port: int) -> None:
    assert local_server.is_ready(port)
    assert not local_server.is_ready(free_port())


def test_memory_counts_this_process() -> None:
    assert os.getpid() in demo.family(os.getppid())
    assert demo.proportional_bytes(os.getpid()) > 2**20
    assert "PSS of" in demo.memory_line(os.getpid())
