"""Which pages may use a server from Chromium, and which cannot even make it work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import browser
from tests.clients.browser import Requests, Site
from tests.e2e.server import Server

pytestmark = pytest.mark.clients

KEY = "secret"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
STREAMED = json.dumps({**json.loads(BODY), "stream": True})
CHAT = "/v1/chat/completions"
BLOCKED = {"error": "TypeError"}


@pytest.fixture(scope="module")
def chromium() -> str:
    found = browser.program()
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    return found


@pytest.fixture
def home() -> Iterator[Site]:
    with browser.site() as made:
        yield made


@pytest.fixture
def foreign() -> Iterator[Site]:
    with browser.site() as made:
        yield made


def post(server: Server, body: str, kind: str, **options: object) -> tuple[str, dict[str, object]]:
    headers = {"content-type": kind, **({} if "mode" in options else {"authorization": KEYED})}
    return server.url + CHAT, {"method": "POST", "headers": headers, "body": body, **options}


KEYED = f"Bearer {KEY}"


def requests(server: Server) -> Requests:
    """What a page of another origin may try."""
    models = server.url + "/v1/models"
    return {
        "models": (models, {"headers": {"authorization": KEYED}}),
        "wrong key": (models, {"headers": {"authorization": "Bearer other"}}),
        "chat": post(server, BODY, "application/json"),
        "stream": post(server, STREAMED, "application/json"),
        "plain text": post(server, BODY, "text/plain", mode="no-cors"),
    }


def statuses(server: Server) -> set[tuple[str, str, str]]:
    """Method, path and status of what has reached the server."""
    return set(re.findall(r"(OPTIONS|GET|POST) (/v1/\S+) (\d+),", server.text()))


def generated(server: Server) -> float:
    with server.client() as client:
        page = client.get("/metrics").text
    return sum(map(float, re.findall(r"^vllm:generation_tokens_total\{.*?\} (\S+)$", page, re.M)))


def test_a_page_of_an_allowed_origin(
    chromium: str, home: Site, model_file: Path, tmp_path: Path
) -> None:
    flags = ("--allowed-origins", home.origin, "--api-key", KEY, "--access-log")
    with Server(model_file, tmp_path, *flags) as server:
        found = home.fetched(chromium, requests(server))
    assert found["models"]["status"] == 200
    assert found["wrong key"]["status"] == 401, "errors can be read too"
    assert json.loads(found["chat"]["text"])["usage"]["completion_tokens"] > 0
    assert found["stream"]["text"].endswith("data: [DONE]\n\n")
    assert {("OPTIONS", CHAT, "204"), ("POST", CHAT, "200")} <= statuses(server)


def test_a_page_of_another_origin(
    chromium: str, home: Site, foreign: Site, model_file: Path, tmp_path: Path
) -> None:
    """Its preflights fail; what goes without one is refused before any work."""
    flags = ("--allowed-origins", home.origin, "--access-log")
    with Server(model_file, tmp_path, *flags) as server:
        found = foreign.fetched(chromium, requests(server))
        assert generated(server) == 0
    for name in ("models", "wrong key", "chat", "stream"):
        assert found[name] == BLOCKED, name
    assert found["plain text"] == {"status": 0, "type": "opaque", "text": ""}
    assert ("POST", CHAT, "403") in statuses(server)
    assert ("POST", CHAT, "200") not in statuses(server)


def test_no_page_without_allowed_origins(
    chromium: str, foreign: Site, model_file: Path, tmp_path: Path
) -> None:
    with Server(model_file, tmp_path, "--access-log") as server:
        found = foreign.fetched(chromium, requests(server))
        assert generated(server) == 0
    assert [found[name] for name in ("models", "chat", "stream")] == [BLOCKED] * 3
    assert ("POST", CHAT, "403") in statuses(server)
