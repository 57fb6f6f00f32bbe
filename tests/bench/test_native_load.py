"""The native load generator as Python sees it; tests of its records are in `crates/lab/loadgen`."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from array import array
from typing import Any

import pytest

from penstock._native import LoadRun
from tests.limits import HANG

ANSWER = (
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    b'data: {"choices": [{"text": "a"}]}\n\n'
    b'data: {"choices": [{"text": "\xc3\xa9", "finish_reason": "length"}],'
    b' "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
    b"data: [DONE]\n\n"
)


def serve(listener: socket.socket, hold: threading.Event) -> None:
    """Answers one connection after the other, the first when `hold` is set."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            hold.wait()
            connection.sendall(ANSWER)


@pytest.fixture
def held() -> Any:
    """A server that answers when the event is set: its URL and the event."""
    hold = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, hold), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", hold
        hold.set()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(HANG)


def make(url: str, **settings: object) -> LoadRun:
    target = {
        "base_url": url,
        "path": "/v1/completions",
        "headers": {},
        "max_concurrency": None,
        "connect_timeout_s": 10.0,
        "idle_timeout_s": None,
        "insecure": False,
        "keep_text": True,
    }
    return LoadRun(json.dumps(target | settings))


def test_columns_have_the_promised_types(held: tuple[str, threading.Event]) -> None:
    url, hold = held
    hold.set()
    run = make(url, max_concurrency=1)
    run.add([(0.0, 2, b"{}"), (0.01, 3, b"{}")])
    run.start()
    run.close()
    assert run.wait(HANG)
    columns: dict[str, Any] = run.take()
    kinds = {
        "due": "d",
        "sent": "d",
        "connected": "d",
        "ended": "d",
        "event_times": "d",
        "status": "H",
        "resent": "B",
    }
    kinds |= {"prompt_tokens": "q", "completion_tokens": "q", "cached_tokens": "q"}
    kinds |= {"event_counts": "I", "text_events": "I"}
    read = {name: array(kind, columns[name]) for name, kind in kinds.items()}
    assert read["due"].tolist() == [0.0, 0.01]
    assert read["status"].tolist() == [200, 200]
    assert [read[f"{of}_tokens"].tolist() for of in ("prompt", "completion", "cached")] == [
        [7, 7],
        [2, 2],
        [-1, -1],
    ]
    assert read["resent"].tolist() == [0, 0]
    assert read["event_counts"].tolist() == read["text_events"].tolist() == [2, 2]
    assert len(read["event_times"]) == 4
    assert columns["failure"] == ["", "short"]
    assert columns["detail"] == ["", "2 tokens of 3, finish_reason length"]
    assert (columns["text"], columns["finish"]) == (["aé", "aé"], ["length", "length"])
    assert columns["duration"] == max(read["ended"])
    assert columns["cpu_s"] > 0
    assert set(columns) == {*kinds, "failure", "detail", "finish", "text", "duration", "cpu_s"}
    counts = run.progress()
    assert counts.pop("bytes") > 0
    assert counts == {"added": 2, "sent": 2, "open": 0, "completed": 1, "failed": 1, "events": 4}


def test_other_threads_run_while_one_waits(held: tuple[str, threading.Event]) -> None:
    url, hold = held
    run = make(url)
    run.add([(0.0, 0, b"{}")])
    run.start()
    run.close()
    assert not run.wait(0.01)
    # the answer comes from a Python thread, and only after the wait has begun
    threading.Timer(0.2, hold.set).start()
    assert run.wait(HANG)


def test_a_stopped_load(held: tuple[str, threading.Event]) -> None:
    run = make(held[0])
    run.add([(0.0, 0, b"{}"), (1000.0, 0, b"{}")])
    run.start()
    while not run.progress()["sent"]:
        time.sleep(0.001)
    run.stop()
    assert run.wait(HANG)
    columns: dict[str, Any] = run.take()
    assert columns["failure"] == ["interrupted", "unsent"]
    assert math.isnan(array("d", columns["sent"])[1])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"base_url": "ftp://h"}, "scheme"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"speed": 1}, "speed"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make("http://127.0.0.1:1", **settings)


def test_wrong_calls() -> None:
    run = make("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="due time"):
        run.add([(1.0, 0, b"{}"), (0.5, 0, b"{}")])
    with pytest.raises(RuntimeError, match="not been started"):
        run.wait(0.0)
    with pytest.raises(RuntimeError, match="not ended"):
        run.take()
    with pytest.raises(ValueError, match="seconds"):
        run.wait(-1.0)
