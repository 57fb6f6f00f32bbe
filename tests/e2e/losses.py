"""What clients and operators see of processes that are lost, fail or stand still while requests
run.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import sse
from tests.e2e.server import Server, eventually
from tests.fakes import faulty
from tests.processes import is_alive, memory_files

LONG = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 6000, "ignore_eos": True}
SHORT = ("Once upon a time", 8)


@contextmanager
def nothing_left() -> Iterator[list[int]]:
    """Check that no process of the list and no shared memory is left."""
    before = memory_files()
    pids: list[int] = []
    yield pids
    eventually(lambda: not any(map(is_alive, pids)), "the end of all processes")
    # Other suites' ranks unlink theirs at once, too.
    eventually(lambda: memory_files() <= before, "the end of the shared memory")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def health(client: httpx.Client) -> int:
    return client.get("/health").status_code


STALL = ("--engine-stall-timeout", "5")
"""For `check_standing_still`: longer than a busy machine keeps a healthy engine waiting, which
would get no requests.
"""


def check_standing_still(client: httpx.Client, pids: Iterable[int]) -> None:
    """Each process in turn: the server is unhealthy meanwhile, the stream under way goes on, and
    answers are as ever afterwards.
    """
    expected = sse.complete(client, *SHORT)
    for pid in pids:
        with sse.stream(client, "/v1/completions", LONG) as events:
            events.take(2)
            with stopped(pid):
                eventually(lambda: health(client) == 503, "an unhealthy server")
                assert "stuck" in client.get("/health").text
            events.take(100)
        eventually(lambda: health(client) == 200, "a healthy server")
        assert sse.complete(client, *SHORT) == expected


def wait_replaced(client: httpx.Client, server: Server, engine: int) -> None:
    """Until another engine than this one serves."""
    eventually(lambda: server.children() not in ([], [engine]), "another engine")
    eventually(lambda: health(client) == 200, "a healthy server")


def follow(server: Server, running: list[int]) -> list[Any]:
    """All events of a long stream; notes its first token in `running`."""
    with server.client() as client, sse.stream(client, "/v1/completions", LONG) as events:
        found = events.take(2)
        running.append(1)
        found += list(events)
        assert events.done
    return found


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
    """Do harm while streams run. All end with an error, another engine serves, and the times are
    printed.
    """
    engine = server.engine()
    with ThreadPoolExecutor(streams) as pool:
        running: list[int] = []
        answers = [pool.submit(follow, server, running) for _ in range(streams)]
        eventually(lambda: len(running) == streams, "streams with a first token")
        began = time.monotonic()
        harm()
        messages = [answer.result()[-1]["error"]["message"] for answer in answers]
        ended = time.monotonic() - began
    with server.client() as client:
        eventually(lambda: health(client) == 200, "a healthy server")
    resumed = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{what}: streams ended after {ended:.3f} s, service resumed after {resumed:.3f} s")
    assert server.engine() != engine
    return Loss(messages, ended, resumed)


def take_orders(patch: pytest.MonkeyPatch, repository: Path, orders: Path) -> None:
    """Ranks of `faulty` servers that are started from now on look there for orders to fail."""
    paths = [str(repository), *filter(None, [os.environ.get("PYTHONPATH")])]
    patch.setenv("PYTHONPATH", os.pathsep.join(paths))
    patch.setenv(faulty.VARIABLE, str(orders))


def check_failure(loss: Loss, log: list[str], rank: int, error: str) -> None:
    """The rank that failed in a step is named to all clients, and its traceback, no other, is in
    the log.
    """
    for message in loss.messages:
        assert re.search(rf"rank {rank} failed in step \d+: {error}", message), message
    heads = [at for at, line in enumerate(log) if re.search(r"rank \d+ failed in step \d+:$", line)]
    assert {re.search(r"rank (\d+)", log[at])[1] for at in heads} == {str(rank)}, "\n".join(log)
    trace = log[heads[0] + 1 :]
    assert trace[0] == "Traceback (most recent call last):"
    assert any(re.fullmatch(error, line) for line in trace)
    # The frames lead from the loop of the rank to where it failed.
    assert any(re.search(r"worker/loop\.py.* in (start|wait)$", line) for line in trace)
