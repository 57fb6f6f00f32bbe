from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.config.machine import free_port
from penstock.core import InvalidValueError
from penstock_ops.top import reading
from penstock_ops.top.reading import Target, base_of, read
from tests.top.pages import FakeServer, document, gateway_text, server_text

GATEWAY = {"/metrics": (200, gateway_text(1, 0)), "/ready": (200, "")}
MODELS = (200, json.dumps({"data": [{"id": "tiny"}, {"id": 3}, 4]}))


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h/", "http://h"),
        ("https://h:8443/llm/v1", "https://h:8443/llm"),
        ("h:1/metrics", "http://h:1"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses(given: str, base: str) -> None:
    assert base_of(given) == base


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ftp://h",
        "http://",
        "h:0",
        "h:99999",
        "h:x",
        "u:p@h:1",
        "h:1/?q=1",
        "h:1#x",
        "h:1/\x1b[2J",
        "h h:1",
        "h:1/\u6a21",
        "http://[::1",
    ],
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(InvalidValueError, match="expected HOST:PORT") as caught:
        base_of(given)
    assert str(caught.value).isprintable()


def test_a_server() -> None:
    answers = {"/metrics": (200, server_text()), "/ready": (200, "")}
    with FakeServer(dict(answers)) as server:
        found = read(Target(server.url, "secret"))
        assert {key for _, key in server.seen} == {"Bearer secret"}
    assert (found.state, found.error, found.models) == ("ready", "", ("tiny",))
    assert (found.is_gateway, found.replicas) == (False, ())
    assert found.page.total("vllm:num_requests_running") == 3


def test_a_server_of_vllm_has_health_but_not_ready() -> None:
    with FakeServer({"/metrics": (200, server_text()), "/health": (200, "")}) as server:
        assert read(Target(server.url)).state == "ready"


def test_one_that_drains_says_so() -> None:
    words = json.dumps({"error": {"message": "The server is shutting down."}})
    with FakeServer({"/metrics": (200, server_text()), "/ready": (503, words)}) as server:
        found = read(Target(server.url))
    assert (found.state, found.error) == ("not ready", "The server is shutting down.")
    assert found.page.samples, "its numbers are shown all the same"


@pytest.mark.parametrize("body", ["", "[]", '{"error": 1}', "[" * 100_000, "\xff"])
def test_an_error_without_a_message_is_its_status(body: str) -> None:
    with FakeServer({"/metrics": (200, server_text()), "/ready": (503, body)}) as server:
        assert read(Target(server.url)).error == "503 Service Unavailable"


def test_another_program() -> None:
    with FakeServer({"/metrics": (200, "<html>"), "/ready": (200, "")}) as server:
        assert read(Target(server.url)).error == "no metrics of Penstock or vLLM at /metrics"
    with FakeServer({"/health": (200, "")}) as server:
        assert read(Target(server.url)).error == "no metrics: 404 at /metrics"
    # A redirect is not followed: it could lead the key elsewhere.
    with FakeServer({"/metrics": (302, ""), "/ready": (200, "")}) as server:
        assert read(Target(server.url, "k")).error == "no metrics: 302 at /metrics"
        assert "/elsewhere" not in [path for path, _ in server.seen]


def test_a_gateway_lists_its_replicas() -> None:
    one = {"address": "10.0.0.7:8000", "condition": "warming", "load": {"running": 1}}
    answers = {**GATEWAY, "/v1/models": MODELS, "/replicas": (200, document(one))}
    with FakeServer(dict(answers)) as server:
        found = read(Target(server.url))
    assert (found.is_gateway, found.models) == (True, ("tiny",))
    assert [(each.address, each.state) for each in found.replicas] == [("10.0.0.7:8000", "warming")]


def test_an_older_gateway_has_them_on_its_metrics_page() -> None:
    with FakeServer(dict(GATEWAY)) as server:
        found = read(Target(server.url))
    assert [each.state for each in found.replicas] == ["ready", "not ready"]
    assert found.error == ""


def test_a_key_that_is_missing_is_named() -> None:
    closed = (401, json.dumps({"error": {"message": "no key"}}))
    answers = {**GATEWAY, "/v1/models": closed, "/replicas": closed}
    with FakeServer(dict(answers)) as server:
        found = read(Target(server.url))
    assert found.error == "401 at /replicas: give its key with --api-key or PENSTOCK_API_KEY"
    assert len(found.replicas) == 2


def test_nothing_listens() -> None:
    found = read(Target(f"http://127.0.0.1:{free_port()}"))
    assert (found.state, found.error) == ("dead", "connection refused")


@contextmanager
def listener(*pieces: bytes, every: float = 0.0) -> Iterator[str]:
    """A server that sends these bytes to each connection, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(4096)
                        for piece in pieces:
                            connection.sendall(piece)
                            time.sleep(every)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", "connection closed without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
            "connection closed in the middle of an answer",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500 + b"\r\n", "no HTTP"),
    ],
)
def test_what_is_no_answer_is_dead(sent: bytes, error: str) -> None:
    with listener(sent) as url:
        found = read(Target(url))
    assert (found.state, found.error) == ("dead", error)


def test_plain_http_where_tls_is_expected() -> None:
    with listener(b"HTTP/1.1 400 Bad\r\n\r\n") as url:
        found = read(Target(url.replace("http", "https")))
    assert found.state == "dead"
    assert found.error.startswith("TLS: ")


def test_a_slow_answer_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE", 0.3)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    with listener(head, *[b"x"] * 100_000, every=0.05) as url:
        found = read(Target(url))
    assert found.state == "dead"
    assert found.error.startswith("no answer within")


def test_an_answer_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 16)
    with listener(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (1 << 20)) as url:
        assert read(Target(url)).error.startswith("an answer of more than")
