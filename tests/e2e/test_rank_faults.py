"""Ranks that fail, freeze or are terminated while requests run, in processes of this host."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.losses import (
    LONG,
    SHORT,
    STALL,
    check_failure,
    check_standing_still,
    health,
    lose,
    nothing_left,
    stopped,
    take_orders,
)
from tests.e2e.server import Server, eventually
from tests.e2e.test_parallel import ranks_of
from tests.fakes import faulty
from tests.processes import is_alive

SLOW = pytest.mark.slow


@pytest.fixture
def orders(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with orders to fail for ranks of `faulty` servers."""
    take_orders(monkeypatch, repository, tmp_path / "orders")
    return tmp_path / "orders"


@pytest.mark.parametrize(
    ("grid", "faults"),
    [
        ((2, 1), [(0, "raise"), (1, "refuse")]),
        ((1, 2), [(1, "raise"), (0, "refuse")]),
        ((2, 2), [(0, "raise"), (3, "raise")]),
        pytest.param(
            (2, 2), [(r, how) for r in range(4) for how in ("raise", "refuse")], marks=SLOW
        ),
    ],
    ids=["tp2", "pp2", "tp2 pp2", "all"],
)
def test_a_rank_that_fails_in_a_step_is_named_and_replaced(
    serve: Serve,
    orders: Path,
    grid: tuple[int, int],
    faults: list[tuple[int, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["-tp", str(grid[0]), "-pp", str(grid[1]), "--max-model-len", "8000"]
    with (
        nothing_left() as pids,
        serve(*flags, module=faulty.NAME) as server,
        server.client() as client,
    ):
        expected = sse.complete(client, *SHORT)
        for rank, how in faults:
            ranks = ranks_of(server.engine())
            assert len(ranks) == grid[0] * grid[1]
            pids += ranks
            said = len(server.log)
            what = f"{grid[0]}x{grid[1]}, rank {rank} told to {how}"
            loss = lose(server, partial(faulty.order, orders, rank, how), what, capsys)
            error = rf"RuntimeError: {faulty.MESSAGE}" if how == "raise" else "ValueError: .*"
            check_failure(loss, server.log[said:], rank, error)
            assert not [pid for pid in ranks if is_alive(pid)]
            assert sse.complete(client, *SHORT) == expected
        pids += ranks_of(server.engine())


def test_a_rank_that_stands_still_shows_in_health_and_goes_on_afterwards(serve: Serve) -> None:
    flags = ["-tp", "2", "-pp", "2", *STALL]
    with nothing_left() as pids, serve(*flags) as server, server.client() as client:
        engine = server.engine()
        pids += ranks_of(engine)
        check_standing_still(client, pids)
        assert server.engine() == engine
        assert ranks_of(engine) == pids


@pytest.mark.parametrize("end", ["stop", "kill the engine", "kill the server"])
def test_a_rank_that_stands_still_does_not_outlive_its_engine(serve: Serve, end: str) -> None:
    with nothing_left() as pids:
        server = serve("-pp", "2", "--shutdown-timeout", "1")
        server.wait_ready()
        pids += ranks_of(server.engine())
        with server.client() as client, sse.stream(client, "/v1/completions", LONG) as events:
            events.take(2)
            os.kill(pids[1], signal.SIGSTOP)
            if end == "stop":
                assert server.stop() == 0
            elif end == "kill the server":
                server.destroy()
            else:
                os.kill(server.engine(), signal.SIGKILL)
                assert "killed by signal 9" in list(events)[-1]["error"]["message"]
        eventually(lambda: not any(map(is_alive, pids)), "the end of all ranks")
        if server.process.poll() is None:
            with server.client() as client:
                eventually(lambda: health(client) == 200, "a healthy server")
                pids += ranks_of(server.engine())
            assert server.stop() == 0


@pytest.mark.parametrize("grid", [(2, 1), (1, 2)], ids=["tp2", "pp2"])
def test_a_server_that_is_told_to_end_lets_streams_of_ranks_finish(
    serve: Serve, grid: tuple[int, int]
) -> None:
    with nothing_left() as pids:
        server = serve("-tp", str(grid[0]), "-pp", str(grid[1]))
        server.wait_ready()
        pids += [server.engine(), *ranks_of(server.engine())]
        ends = drained(server)
    assert ends == ["length"] * 3
    assert server.wait() == 0
    assert not list(server.runtime.iterdir())
    assert "Traceback" not in server.text()


def drained(server: Server) -> list[str]:
    """Finish reasons of streams during which SIGTERM comes; what comes later is turned away."""
    body = {**LONG, "max_tokens": 100}
    running: list[int] = []

    def finish() -> str:
        with server.client() as client, sse.stream(client, "/v1/completions", body) as events:
            events.take(2)
            running.append(1)
            reason: str = list(events)[-1]["choices"][0]["finish_reason"]
            assert events.done
        return reason

    with ThreadPoolExecutor(3) as pool, server.client() as late:
        streams = [pool.submit(finish) for _ in range(3)]
        eventually(lambda: len(running) == 3, "three streams with a first token")
        # Another stream, because a server without one ends before it refuses anything.
        with sse.stream(late, "/v1/completions", LONG) as another:
            another.take(2)
            with stopped(server.engine()):
                server.signal(signal.SIGTERM)
                eventually(lambda: any("draining" in line for line in server.log), "a drain")
                assert late.post("/v1/completions", json=body).status_code == 503
        return [stream.result() for stream in streams]


def test_runs_of_one_grid_are_bit_for_bit_equal(serve: Serve) -> None:
    """Together, in another order each time: log-probabilities show the smallest difference of
    arithmetic.
    """
    numbers = range(8)
    runs = []
    for order in (numbers, reversed(numbers)):
        with (
            serve("-tp", "2", "-pp", "2") as server,
            server.client() as client,
            ThreadPoolExecutor() as pool,
        ):
            started = {number: pool.submit(probed, client, number) for number in order}
            runs.append([started[number].result() for number in numbers])
    assert runs[0] == runs[1]
    assert len(set(map(str, runs[0]))) == len(numbers)


def probed(client: httpx.Client, number: int) -> object:
    """Tokens and log-probabilities of an answer, greedy or sampled, to a short or a long prompt."""
    prompt = [5 + 7 * number + 3 * at % 1000 for at in range(1 + 24 * number)]
    sampling = {"temperature": number % 2 * 0.8, "seed": number, "ignore_eos": True}
    choice = sse.complete(client, prompt, 12, logprobs=5, return_token_ids=True, **sampling)
    return choice["token_ids"], choice["logprobs"]
