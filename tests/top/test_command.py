"""`penstock top` at its seams: fake servers on loopback, and a pseudo-terminal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.config.machine import free_port
from tests.limits import HANG
from tests.top.pages import FakeServer, counting, document
from tests.top.terminal import Terminal

READY = (200, "")
HOSTILE = "evil\x1b[2J\x1b]0;owned\x07\u202e"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer({"/metrics": counting(), "/ready": READY}) as fake:
        yield fake


def nobody() -> str:
    return f"127.0.0.1:{free_port()}"


def test_once(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", server.address, "--once", "--interval", "0.2"]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith("ADDRESS")
    assert row.startswith(server.address)
    for text in ("ready", "50%", "25%", "100ms", "492ms"):
        assert text in row, row


def test_once_with_a_dead_one_is_status_1(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", server.address, nobody(), "--once", "--interval", "0.2"]) == 1
    out = capsys.readouterr().out
    assert "connection refused, for" in out
    assert "ready" in out


def test_json_has_the_rows(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    replica = {"address": server.address, "condition": "ready", "load": {"running": 1}}
    gateway: dict[str, Any] = {
        "/metrics": (200, "penstock:gateway_requests_open 2\n"),
        "/ready": READY,
        "/v1/models": (200, json.dumps({"data": [{"id": HOSTILE}]})),
        "/replicas": (200, document(replica)),
    }
    with FakeServer(gateway) as fake:
        assert main(["top", fake.url, "--json", "--interval", "0.2", "--api-key", "k"]) == 0
        assert {key for _, key in fake.seen} == {"Bearer k"}
    assert {key for _, key in server.seen} == {None}, "a gateway's replicas get no key"
    text = capsys.readouterr().out
    assert "\x1b" not in text
    head, row = json.loads(text)
    assert (head["kind"], head["models"], head["running"]) == ("gateway", [HOSTILE], 2)
    assert (row["kind"], row["group"], row["running"]) == ("replica", fake.url, 1)
    assert row["hit_share"] == 0.25
    assert row["tokens_in"] > 0
    assert row["ttft"]["p50"] == pytest.approx(0.1)


def test_an_address_given_twice_has_one_row(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["top", server.address, server.url + "/v1", "--json", "--interval", "0.2"])
    assert len(json.loads(capsys.readouterr().out)) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ftp://h"], "URL is 'ftp://h', expected HOST:PORT"),
        (["h:1", "--interval", "0"], "--interval is 0.0, expected 0.2 to 60 seconds"),
        (["h:1", "--interval", "nan"], "--interval is nan, expected 0.2 to 60 seconds"),
        (["h:1", "--api-key", "a\nb"], "--api-key is '...', expected printable ASCII"),
    ],
)
def test_mistakes_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_a_terminal_it_is_once(server: FakeServer) -> None:
    command = [sys.executable, "-m", "penstock", "top", server.address, "--interval", "0.2"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=HANG, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


@pytest.fixture
def fleet(server: FakeServer) -> Iterator[FakeServer]:
    """A gateway with a replica that can be reached, one that is lost, and hostile words."""
    replicas = [
        {"address": server.address, "condition": "ready", "load": {"running": 7}},
        {"address": nobody(), "condition": "ejected", "reason": HOSTILE, "models": [HOSTILE]},
    ]
    models = (200, json.dumps({"data": [{"id": "tiny"}]}))
    page = (200, "penstock:gateway_requests_open 2\n")
    answers: dict[str, Any] = {"/metrics": page, "/ready": READY, "/v1/models": models}
    with FakeServer({**answers, "/replicas": (200, document(*replicas))}) as fake:
        yield fake


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_screen(fleet: FakeServer, server: FakeServer, size: tuple[int, int]) -> None:
    dead = nobody()
    words = ("top", fleet.url, dead, "--interval", "0.2")
    terminal = Terminal(*words, columns=size[0], lines=size[1])
    try:
        shown = terminal.until(
            fleet.address, server.address, "100ms", "connection refused", "owned"
        )
        first, *_, last = shown.splitlines()
        assert first.startswith("penstock top  2 addresses, 2 replicas  2 not ready")
        assert last.startswith("q quit")
        assert re.search(r"\d\d:\d\d:\d\d$", first), "the last column is there"
        assert shown.count("\n") == size[1] - 1
        assert "1049" in terminal.picture.modes
        terminal.type("?")
        terminal.until("time to the first token: median")
        terminal.type("?/ejec")
        terminal.until("filter: ejec_")
        text = terminal.when(lambda text: dead not in text, "a filtered table")
        assert fleet.address in text
        terminal.type("\x1b")
        terminal.until(dead)
        terminal.type("\r")
        terminal.until("last reading")
        terminal.type("qss")
        terminal.until("order: load")
        terminal.type("q")
        assert terminal.end() == 0
        assert not terminal.picture.overflowed
        assert_restored(terminal)
    finally:
        terminal.close()


def assert_restored(terminal: Terminal) -> None:
    assert "1049" not in terminal.picture.modes
    assert {"25", "7"} <= terminal.picture.modes, "the cursor, and wrapping"
    assert terminal.echoes()


def test_the_screen_follows_the_size(fleet: FakeServer) -> None:
    terminal = Terminal("top", fleet.url, "--interval", "0.2", columns=80, lines=24)
    try:
        terminal.until(fleet.address, "q quit")
        for columns, lines in ((200, 50), (40, 8), (100, 30)):
            terminal.resize(columns, lines)
            terminal.when(
                lambda text, least=lines: (
                    text.count("q quit") == 1
                    and text.count("\n") == least - 1
                    and text.splitlines()[-1].startswith("q quit")
                ),
                f"{columns} x {lines}",
            )
            # What was drawn for the old size may have been on its way.
            terminal.picture.overflowed = False
            time.sleep(0.5)
            terminal.until(fleet.address)
            assert not terminal.picture.overflowed
        terminal.type("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_restores_the_terminal(
    server: FakeServer, number: signal.Signals, status: int
) -> None:
    terminal = Terminal("top", server.url, columns=80, lines=24)
    try:
        terminal.until(server.address)
        if number == signal.SIGINT:
            terminal.type("\x03")
        else:
            terminal.signal(number)
        assert terminal.end() == status
        assert_restored(terminal)
    finally:
        terminal.close()


def test_a_stopped_job_has_given_the_terminal_back(server: FakeServer) -> None:
    words = ("top", server.url, "--interval", "0.2")
    terminal = Terminal(*words, columns=80, lines=24, under_a_shell=True)
    try:
        terminal.until(server.address)
        terminal.type("\x1a")
        terminal.wait_for("STOPPED")
        assert_restored(terminal)
        terminal.picture.feed("\x1b[2J")
        terminal.type("\n")
        terminal.until(server.address, "q quit")
        assert "1049" in terminal.picture.modes
        terminal.type("q")
        assert terminal.end() == 0
        assert_restored(terminal)
    finally:
        terminal.close()


def test_no_color_and_a_dumb_terminal(server: FakeServer) -> None:
    words = ("top", server.url, nobody(), "--interval", "0.2")
    plain = Terminal(*words, columns=80, lines=24, NO_COLOR="1")
    try:
        plain.until(server.address, "connection refused")
        plain.type("q")
        assert plain.end() == 0
        assert not {"\x1b[31m", "\x1b[32m", "\x1b[33m"} & set(
            re.findall(r"\x1b\[\d*m", plain.everything)
        )
    finally:
        plain.close()
    dumb = Terminal(*words, columns=80, lines=24, TERM="dumb")
    try:
        assert dumb.end() == 1, "as with --once"
        assert "\x1b" not in dumb.everything
        assert "connection refused" in dumb.everything
    finally:
        dumb.close()


def test_pause_keeps_the_numbers(server: FakeServer) -> None:
    terminal = Terminal("top", server.url, "--interval", "0.2", columns=80, lines=24)
    try:
        terminal.until(server.address, "100ms")
        terminal.type(" ")
        terminal.until("PAUSED")
        server.answers = {}
        seen = len(server.seen)
        deadline = time.monotonic() + HANG
        while len(server.seen) < seen + 9 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "ready" in terminal.until("PAUSED")
        terminal.type(" ")
        terminal.until("404 ")
        terminal.type("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
