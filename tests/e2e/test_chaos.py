"""Losses and overload in crowds: every request ends once, and nothing is left behind.

Tried: the engine killed again and again under 32 streams, stopped and continued under them, ten
times more requests than the server takes, and clients that leave at any moment.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.server import Server, eventually, metric
from tests.e2e.sse import completion
from tests.limits import HANG

STREAMS = 32
GENERATED = "vllm:generation_tokens_total"
VISITS = 60
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=HANG, limits=LIMITS)


async def end_of(client: httpx.AsyncClient, leave_after: int | None = None, **more: object) -> str:
    """How a streamed completion ends, in a word; `leave_after` as in `completion`."""
    body = {"prompt": "Once upon a time", "ignore_eos": True, **more}
    found = await completion(client, body, leave_after)
    if found.refusal is not None:
        error = found.refusal.json()["error"]
        assert found.status != 503 or int(found.refusal.headers["retry-after"]) > 0
        return f"{found.status} {error['code']}"
    if leave_after is not None:
        return "left"
    assert all("engine" in error["message"] for error in found.errors)
    return found.end


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def idle(server: Server) -> bool:
    """Whether no request is left anywhere, and no block is held."""
    with server.client() as client:
        page = client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    held = [
        float(value)
        for name, value in values.items()
        if name.startswith(
            (
                "penstock:requests_in_flight",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting{",
                "vllm:kv_cache_usage_perc",
            )
        )
    ]
    assert len(held) == 4
    return not any(held)


def healthy(server: Server) -> bool:
    with server.client() as client:
        return client.get("/health").status_code == 200


def generates(server: Server, tokens: float) -> None:
    """Wait until the server has generated more than `tokens` since its start."""
    with server.client() as page:
        eventually(lambda: metric(page, GENERATED) > tokens, "tokens")


async def crowd(
    server: Server, after: float | None, number: signal.Signals, tokens: int = 400
) -> Counter[str]:
    """Ends of 32 streams. Their engine gets a signal after `after` seconds, or if that is None
    as soon as it has generated tokens.
    """
    with server.client() as page:
        before = metric(page, GENERATED)
    async with client_of(server) as client:
        streams = [asyncio.create_task(end_of(client, max_tokens=tokens)) for _ in range(STREAMS)]
        if after is not None:
            await asyncio.sleep(after)
        else:
            await asyncio.to_thread(generates, server, before + STREAMS)
        engine = server.engine()
        os.kill(engine, number)
        if number == signal.SIGSTOP:
            await asyncio.sleep(1)
            os.kill(engine, signal.SIGCONT)
        return Counter(await asyncio.gather(*streams))


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_an_engine_killed_under_a_crowd(serve: Serve, rounds: int) -> None:
    rng = random.Random(1)
    with serve() as server:
        eventually(lambda: idle(server), "an idle server")
        before = descriptors(server.pid)
        total: Counter[str] = Counter()
        for round_ in range(rounds):
            # Mostly at any moment, which may be before the first token.
            after = rng.uniform(0.05, 1.0) if round_ else None
            total += asyncio.run(crowd(server, after, signal.SIGKILL))
            eventually(lambda: healthy(server), "another engine")
        eventually(lambda: idle(server), "an idle server")
        eventually(lambda: descriptors(server.pid) <= before, "closed descriptors")
        assert len(server.children()) == 1
    print(f"{rounds} kills under {STREAMS} streams: {dict(total)}")
    assert total.total() == rounds * STREAMS
    assert set(total) <= {"finished", "failed", "503 engine_failed", "503 service_unavailable"}
    assert total["failed"] > 0


def test_an_engine_stopped_and_continued_under_a_crowd(serve: Serve) -> None:
    # Streams as short as the stop allows: all of them are computed to their end.
    with serve() as server:
        ends = asyncio.run(crowd(server, None, signal.SIGSTOP, tokens=32))
        assert ends == {"finished": STREAMS}
        eventually(lambda: idle(server), "an idle server")


def test_ten_times_more_requests_than_the_server_takes(serve: Serve) -> None:
    async def burst(server: Server) -> Counter[str]:
        async with client_of(server) as client:
            requests = [end_of(client, max_tokens=16) for _ in range(80)]
            return Counter(await asyncio.gather(*requests))

    # A pool that the first burst fills: its memory is touched as it is used.
    flags = (
        "--max-num-seqs",
        "4",
        "--max-num-queued-reqs",
        "4",
        "--kv-cache-memory-bytes",
        "8MiB",
        "--max-model-len",
        "256",
    )
    with serve(*flags) as server:
        asyncio.run(burst(server))
        pids = [server.pid, server.engine()]
        before = [resident_mib(pid) for pid in pids]
        total: Counter[str] = Counter()
        for _ in range(5):
            total += asyncio.run(burst(server))
        eventually(lambda: idle(server), "an idle server")
        after = [resident_mib(pid) for pid in pids]
    print(f"400 requests at 8 places: {dict(total)}; resident MiB {before} -> {after}")
    # Refused before any header of a stream: `end_of` has seen the status.
    assert set(total) == {"finished", "503 queue_full"}
    assert total["finished"] >= 5 * 8
    assert all(late <= early * 1.05 + 8 for early, late in zip(before, after, strict=True))


def test_clients_that_leave_at_any_moment(serve: Serve) -> None:
    rng = random.Random(2)

    async def visit(client: httpx.AsyncClient) -> str:
        if rng.random() < 0.3:
            waiting = asyncio.create_task(end_of(client, max_tokens=200))
            await asyncio.sleep(rng.uniform(0, 0.3))
            waiting.cancel()
            return "left"
        return await end_of(client, leave_after=rng.randint(1, 30), max_tokens=200)

    async def visits(server: Server) -> Counter[str]:
        async with client_of(server) as client:
            return Counter(await asyncio.gather(*(visit(client) for _ in range(VISITS))))

    with serve() as server:
        eventually(lambda: idle(server), "an idle server")
        before = descriptors(server.pid)
        ends = asyncio.run(visits(server))
        eventually(lambda: idle(server), "an idle server")
        eventually(lambda: descriptors(server.pid) <= before, "closed descriptors")
    assert ends == {"left": VISITS}
