"""Faults while requests run: engine, client, timeouts."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.losses import (
    LONG,
    STALL,
    check_standing_still,
    follow,
    health,
    stopped,
    wait_replaced,
)
from tests.e2e.server import Server, eventually, metric
from tests.limits import HANG
from tests.processes import is_alive

COMPLETIONS = "/v1/completions"
SHORT = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
KILLED = "killed by signal 9 (SIGKILL)"


def idle(client: httpx.Client) -> bool:
    names = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
    return all(metric(client, f"vllm:{name}") == 0 for name in names)


def turned_away(server: Server) -> httpx.Response:
    """The first request for which there is no engine."""
    with server.client() as client:

        def probe() -> httpx.Response | None:
            answer = client.post(COMPLETIONS, json=SHORT)
            return answer if answer.status_code == 503 else None

        return eventually(probe, "a request that is turned away")


def unhealthy(server: Server) -> bool:
    with server.client() as client:
        return eventually(lambda: health(client) == 503, "an unhealthy server")


def test_a_killed_engine_ends_every_request_with_the_cause(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve() as server, server.client() as client, ThreadPoolExecutor(9) as pool:
        before = sse.complete(client, "Once upon a time", 8)
        running: list[int] = []
        streams = [pool.submit(follow, server, running) for _ in range(6)]
        whole = pool.submit(lambda: client.post(COMPLETIONS, json=LONG))
        eventually(lambda: len(running) == 6, "six streams with a first token")
        eventually(
            lambda: metric(client, "vllm:num_requests_running") == 7, "seven running requests"
        )
        refused, sick = pool.submit(turned_away, server), pool.submit(unhealthy, server)
        engine = server.engine()
        killed_at = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        ends = [stream.result()[-1] for stream in streams]
        with capsys.disabled():
            print(
                "\nkilled engine: the last of 6 streams ended after "
                f"{time.monotonic() - killed_at:.3f} s"
            )
        assert all(KILLED in end["error"]["message"] for end in ends)
        answer = whole.result()
        assert answer.status_code >= 500
        assert KILLED in answer.json()["error"]["message"]
        kills = 1
        eventually(lambda: health(client) == 200, "a healthy server")
        while not (sick.done() and refused.done()):
            # The next engine was there before one of them has looked.
            engine = server.engine()
            os.kill(engine, signal.SIGKILL)
            kills += 1
            wait_replaced(client, server, engine)
        assert sick.result()
        assert "retry-after" in refused.result().headers
        assert server.engine() != engine
        assert metric(client, "penstock:engine_restarts_total") == kills
        assert metric(client, "penstock:engine_ranks_up") == 1
        assert metric(client, "penstock:engine_report_age_seconds") < HANG
        assert server.lines(KILLED)
        assert sse.complete(client, "Once upon a time", 8) == before
        eventually(lambda: idle(client), "an engine without requests")


def test_an_engine_that_stands_still_is_not_healthy_and_goes_on_afterwards(serve: Serve) -> None:
    with serve(*STALL) as server, server.client() as client:
        eventually(lambda: health(client) == 200, "a healthy server")
        check_standing_still(client, [server.engine()])


def test_the_first_chunk_leaves_with_the_first_token(server: Server) -> None:
    """Clients take the time to the first token from it, so it must not come while nothing is
    computed.
    """
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}

    def arrivals(client: httpx.Client) -> list[float]:
        with sse.stream(client, "/v1/chat/completions", body) as events:
            return [time.monotonic() for _ in events]

    with server.client() as client, ThreadPoolExecutor() as pool:
        with stopped(server.engine()):
            answer: Future[list[float]] = pool.submit(arrivals, client)
            time.sleep(0.5)
            released = time.monotonic()
        assert answer.result()[0] > released


@pytest.mark.parametrize("reads_until", [0, 3])
def test_a_client_that_leaves_gives_its_blocks_back(server: Server, reads_until: int) -> None:
    with server.client() as client:
        with sse.stream(client, COMPLETIONS, LONG) as events:
            events.take(reads_until)
            eventually(
                lambda: metric(client, "vllm:num_requests_running") == 1, "a running request"
            )
            assert metric(client, "vllm:kv_cache_usage_perc") > 0
        eventually(lambda: idle(client), "an engine without requests")
        with server.client() as hasty, pytest.raises(httpx.ReadTimeout):
            hasty.post(COMPLETIONS, json=LONG, timeout=0.5)
        eventually(lambda: idle(client), "an engine without requests")
        assert sse.complete(client, "Once upon a time", 8)["finish_reason"] == "length"


def test_a_prompt_that_is_too_long_is_refused_before_the_engine_sees_it(serve: Serve) -> None:
    with serve("--max-model-len", "64") as server, server.client() as client:
        for body in [{"prompt": [5] * 64, "max_tokens": 1}, {"prompt": [5] * 60, "max_tokens": 5}]:
            answer = client.post(COMPLETIONS, json=body)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert error["message"].startswith("This model's maximum context length is 64 tokens")
        assert metric(client, "vllm:iteration_tokens_total_count") == 0
        fits = sse.complete(client, [5] * 60, 4, ignore_eos=True, return_token_ids=True)
        assert len(fits["token_ids"]) == 4


def test_a_full_queue_says_when_to_come_back(serve: Serve) -> None:
    flags = ["--max-num-seqs", "1", "--max-num-queued-reqs", "1"]
    with serve(*flags) as server, server.client() as client:
        with sse.stream(client, COMPLETIONS, LONG) as first, ThreadPoolExecutor() as pool:
            first.take(2)
            second = pool.submit(sse.complete, client, "Once upon a time", 8)
            eventually(
                lambda: metric(client, "vllm:num_requests_waiting") == 1, "a waiting request"
            )
            third = client.post(COMPLETIONS, json=SHORT)
            assert third.status_code == 503
            assert int(third.headers["retry-after"]) >= 1
            first.response.close()
            assert second.result()["finish_reason"] == "length"
        lines = client.get("/metrics").text.splitlines()
        refusals = [line for line in lines if 'reason="queue_full"' in line]
        assert [line.rsplit(" ", 1)[1] for line in refusals] == ["1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "group"])
def test_a_stop_lets_streams_finish(
    serve: Serve, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    body = {**LONG, "max_tokens": 150}
    # What a shell or nohup made this process ignore, a server would go on to ignore.
    with serve(prefix=("env", "--default-signal")) as server, server.client() as client:
        with sse.stream(client, COMPLETIONS, body) as events:
            events.take(2)
            # Another stream, because a server without one ends before it refuses anything.
            with server.client() as late, sse.stream(late, COMPLETIONS, LONG) as another:
                another.take(2)
                with stopped(server.engine()):
                    send(server.pid, number)
                    eventually(lambda: any("draining" in line for line in server.log), "a drain")
                    assert late.post(COMPLETIONS, json=SHORT).status_code == 503
            last = list(events)[-1]
            assert events.done
        assert last["choices"][0]["finish_reason"] == "length"
        assert server.wait() == 0
        assert not list(server.runtime.iterdir())
        assert "Traceback" not in server.text()


FREEZER = Path("/sys/fs/cgroup/freezer")


@contextmanager
def unkillable(pid: int) -> Iterator[None]:
    """A frozen cgroup around a process: SIGKILL does nothing until the end of the block, as with
    one that waits for a disk that hangs.
    """
    group = FREEZER / f"penstock-test-{pid}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cgroups cannot be frozen here: {error}")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        eventually(lambda: (group / "freezer.state").read_text() == "FROZEN\n", "a frozen engine")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        eventually(lambda: not (group / "cgroup.procs").read_text(), "an engine that ended")
        group.rmdir()


def test_an_engine_that_cannot_be_killed_does_not_hold_up_the_end(serve: Serve) -> None:
    with serve("--shutdown-timeout", "1") as server, server.client() as client:
        with sse.stream(client, COMPLETIONS, LONG) as events:
            events.take(2)
            engine = server.engine()
            with unkillable(engine):
                server.signal(signal.SIGTERM)
                assert server.process.wait(HANG) == 0
                assert is_alive(engine)
            eventually(lambda: not is_alive(engine), "an engine that ended")
        assert not list(server.runtime.iterdir())


def test_a_log_on_a_full_disk_ends_nothing(serve: Serve, tmp_path: Path) -> None:
    """The supervisor writes to it when an engine is lost."""
    path = tmp_path / "server.sock"
    to_full_disk = ("sh", "-c", 'exec "$@" 2>/dev/full', "sh")
    server = serve("--uds", str(path), prefix=to_full_disk)
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://server", timeout=HANG) as client:
        eventually(path.exists, "a socket")
        eventually(lambda: health(client) == 200, "a healthy server")
        before = server.engine()
        os.kill(before, signal.SIGKILL)
        eventually(lambda: server.children() not in ([], [before]), "another engine")
        eventually(lambda: health(client) == 200, "a healthy server")
        assert sse.complete(client, "Once upon a time", 8)["finish_reason"] == "length"
    assert server.stop() == 0
    assert server.log == [], "what a test of a full disk could not see"


def test_the_engines_command_line_has_no_settings(server: Server, model_file: Path) -> None:
    """Every user of the host can read it, and settings hold passwords of KV tiers."""
    words = Path(f"/proc/{server.engine()}/cmdline").read_text().split("\0")
    assert words[1:5] == ["-P", "-m", "penstock.engine", "--socket"]
    assert len(words) == 7, words


def test_without_an_engine_process_all_is_the_same(serve: Serve, server: Server) -> None:
    with (
        serve("--no-engine-process") as single,
        single.client() as client,
        server.client() as usual,
    ):
        assert single.children() == []
        assert sse.complete(client, "Once upon a time", 16) == sse.complete(
            usual, "Once upon a time", 16
        )
        with sse.stream(client, COMPLETIONS, LONG) as events:
            events.take(2)
        eventually(lambda: idle(client), "an engine without requests")


def test_what_a_killed_server_leaves_is_cleared_by_the_next(serve: Serve, model_file: Path) -> None:
    killed = serve()
    killed.wait_ready()
    engine = killed.engine()
    killed.destroy()
    eventually(lambda: not is_alive(engine), "the end of the engine")
    (left,) = killed.runtime.iterdir()
    (killed.runtime / "penstock-notes").mkdir()
    with Server(model_file, killed.runtime) as server:
        assert not left.exists()
        (killed.runtime / "penstock-notes").rmdir()
        assert len(list(server.runtime.iterdir())) == 1


def test_a_connection_that_says_nothing_holds_nobody_up(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as silent, server.client() as client:
        silent.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n")
        assert sse.complete(client, "Once upon a time", 8)["finish_reason"] == "length"
