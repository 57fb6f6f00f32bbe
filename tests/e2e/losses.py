"""What clients and operators see of ranks that are lost while requests run."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from penstock.config import shared_memory_directory

from tests.e2e import sse
from tests.e2e.server import Server, eventually

LONG = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 6000, "ignore_eos": True}


def memory_files() -> set[str]:
    """Of ranks, and the semaphores of compiled graphs."""
    names = ("penstock-*", "sem.*")
    return {path.name for name in names for path in shared_memory_directory().glob(name)}


def follow(server: Server, running: list[int]) -> Any:
    """The last event of a long stream; notes its first token in `running`."""
    with server.client() as client, sse.stream(client, "/v1/completions", LONG) as events:
        events.take(2)
        running.append(1)
        last = list(events)[-1]
        assert events.done
    return last


@dataclass(frozen=True, slots=True)
class Loss:
    messages: list[str]
    """What each open stream was told."""
    ended: float
    """Seconds until the last stream had ended."""
    resumed: float
    """Seconds until the server was healthy again."""


def lose(
    server: Server,
    harm: Callable[[], object],
    what: str,
    capsys: pytest.CaptureFixture[str],
    streams: int = 4,
) -> Loss:
    """Do harm while streams run. All end with an error, another engine serves, and the times are printed."""
    engine = server.engine()
    with ThreadPoolExecutor(streams) as pool:
        running: list[int] = []
        answers = [pool.submit(follow, server, running) for _ in range(streams)]
        eventually(lambda: len(running) == streams, "streams with a first token")
        began = time.monotonic()
        harm()
        messages = [answer.result()["error"]["message"] for answer in answers]
        ended = time.monotonic() - began
    with server.client() as client:
        eventually(lambda: client.get("/health").status_code == 200, "a healthy server")
    resumed = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{what}: streams ended after {ended:.3f} s, service resumed after {resumed:.3f} s")
    assert server.engine() != engine
    return Loss(messages, ended, resumed)
