"""Fifty modelled replicas that die, hang, crawl, flap, lie and move, under one load.

Tried, one after the other under the same clients: five processes of ten replicas each, one killed,
one killed and started again and again, one that hangs, ten replicas that are slow, three whose
metrics pages are nonsense, a list of replicas that changes, a configuration that changes; and a
name whose addresses change, or vanish. Every request must end exactly once, with the text of a
replica that nothing happens to. The times until the load was as before are printed.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from statistics import median

import httpx
import pytest

from tests.e2e.gateway import Gateway
from tests.e2e.server import eventually, metric
from tests.e2e.sim import Sim
from tests.e2e.sse import completion
from tests.limits import HANG

CLIENTS = 16
TOKENS = 40
PROMPTS = 32
GROUP = 10
"""Replicas of one process."""
AFTERWARDS = 4 * CLIENTS
"""Requests that must end after each trouble."""

FLEET = {
    "slow_start_s": 0,
    "discovery_period_s": 0.1,
    "models_period_s": 1,
    "health": {"period_s": 0.5, "timeout_s": 1.0, "failures": 2},
    "breaker": {"failures": 2, "open_s": 0.5, "max_open_s": 1.0},
}


@dataclass(frozen=True)
class End:
    """How a request ended, and when (seconds of the monotonic clock)."""

    outcome: str
    sent: float
    first: float
    """NaN without a token."""
    ended: float


def body(number: int) -> dict[str, object]:
    words = " ".join(f"t{(number * 7 + at) % 997}" for at in range(40 + number % 5 * 100))
    return {"model": "sim", "prompt": words, "max_tokens": TOKENS, "seed": number}


async def undisturbed(sim: Sim) -> list[str]:
    """The texts of all prompts."""
    async with httpx.AsyncClient(base_url=sim.url, timeout=HANG) as client:
        asked = (completion(client, body(number)) for number in range(PROMPTS))
        return [each.text for each in await asyncio.gather(*asked)]


class Load:
    """Clients on a thread of their own that ask again and again, until the end of the block."""

    def __init__(self, url: str, expected: list[str]) -> None:
        self.ends: list[End] = []
        self._url, self._expected = url, expected
        self._numbers = count()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    def more(self, wanted: int) -> None:
        """Waits until so many more requests have ended."""
        wanted += len(self.ends)
        eventually(lambda: len(self.ends) >= wanted, f"{wanted} requests")

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=HANG, limits=limits) as client:
            await asyncio.gather(*(self._one(client) for _ in range(CLIENTS)))

    async def _one(self, client: httpx.AsyncClient) -> None:
        while not self._leaving.is_set():
            number, sent, first = next(self._numbers) % PROMPTS, time.monotonic(), math.nan
            try:
                found = await completion(client, body(number))
                outcome, first = found.end, found.first
                if outcome == "finished" and found.text != self._expected[number]:
                    outcome = "another text"
            except (httpx.HTTPError, AssertionError) as error:
                outcome = repr(error)
            self.ends.append(End(outcome, sent, first, time.monotonic()))


class Liar:
    """A replica's metrics page that is nonsense; everything else is another server's."""

    PAGES = (
        b"vllm:num_requests_running{} -1e308\nvllm:num_requests_waiting{} NaN\n",
        b"vllm:num_requests_running{} +Inf\nvllm:kv_cache_usage_perc{} 17\n",
        b"\xff\xfe" * 5000 + b"vllm:num_requests_waiting 99999999999999999999999999\n" * 50,
    )

    def __init__(self, server: str) -> None:
        pages = count()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, Liar.PAGES[next(pages) % len(Liar.PAGES)])
                else:
                    self._pass_on(b"")

            def do_POST(self) -> None:
                self._pass_on(self.rfile.read(int(self.headers["content-length"])))

            def _pass_on(self, content: bytes) -> None:
                headers = {
                    key: value
                    for key, value in self.headers.items()
                    if key.lower() not in ("host", "content-length", "connection")
                }
                url = f"{server}{self.path}"
                with httpx.stream(
                    self.command, url, content=content, headers=headers, timeout=HANG
                ) as answer:
                    self.send_response(answer.status_code)
                    for key in ("content-type", "x-penstock-resumable"):
                        if key in answer.headers:
                            self.send_header(key, answer.headers[key])
                    self.send_header("transfer-encoding", "chunked")
                    self.end_headers()
                    for piece in answer.iter_raw():
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")

            def _answer(self, status: int, page: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def free_ports(wanted: int) -> int:
    """The first of so many free ports in a row."""
    for first in random.Random().sample(range(20_000, 30_000), 200):
        with ExitStack() as stack:
            try:
                for port in range(first, first + wanted):
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


class Group:
    """Replicas of one process, which come back on the same ports."""

    def __init__(self, stack: ExitStack, *flags: str) -> None:
        self._stack = stack
        self._flags = ("--port", str(free_ports(GROUP)), *flags)
        self.start()

    def start(self) -> None:
        self.sim = self._stack.enter_context(Sim(*self._flags, replicas=GROUP))

    def kill(self) -> None:
        self.sim.destroy()

    @property
    def urls(self) -> list[str]:
        return self.sim.urls


def ready(client: httpx.Client) -> int:
    page = client.get("/metrics").text
    return len(re.findall(r"^penstock:gateway_replica_ready\{.*\} 1$", page, re.MULTILINE))


def streams(client: httpx.Client, urls: list[str]) -> bool:
    """Whether a request is under way on one of these replicas."""
    page = client.get("/metrics").text
    running = r'^penstock:gateway_replica_running\{.*replica="([^"]*)".*\} [1-9]'
    names = {url.removeprefix("http://") for url in urls}
    return not names.isdisjoint(re.findall(running, page, re.MULTILINE))


def wait_for(client: httpx.Client, replicas: int) -> None:
    eventually(lambda: ready(client) == replicas, f"{replicas} replicas")


def recovery(load: Load, since: int, at: float) -> str:
    """How long after `at` requests were sent that waited unusually long for their first token."""
    usual = median(end.first - end.sent for end in load.ends[:since])
    late = [end for end in load.ends[since:] if not end.first - end.sent < 10 * usual]
    last = max((end.sent for end in late), default=at)
    worst = max((end.first - end.sent for end in load.ends[since:]), default=math.nan)
    return (
        f"{max(0.0, last - at):.2f} s until no request was late, "
        f"worst TTFT {worst:.2f} s, usual {usual * 1e3:.0f} ms"
    )


def test_fifty_replicas_in_trouble(tmp_path: Path) -> None:
    with ExitStack() as stack:
        groups = [Group(stack) for _ in range(4)]
        # Same answers, steps that take longer: `--profile` has no influence on what is answered.
        slow = tmp_path / "slow.json"
        slow.write_text(json.dumps({"timing": {"base_us": 30_000}}))
        crawling = Group(stack, "--profile", str(slow))
        killed, flapping, hung, steady = groups
        liars = [stack.enter_context(Liar(url)) for url in steady.urls[:3]]
        alone = stack.enter_context(Sim())
        urls = [url for group in [*groups, crawling] for url in group.urls]
        urls[urls.index(steady.urls[0]) : urls.index(steady.urls[2]) + 1] = [
            liar.url for liar in liars
        ]
        assert len(urls) == 50

        expected = asyncio.run(undisturbed(alone))
        assert len(set(expected)) == PROMPTS

        listed, file = tmp_path / "replicas", tmp_path / "gateway.yaml"
        listed.write_text("\n".join(urls))

        def configure(**more: object) -> None:
            pool = {"name": "p", "file": str(listed), "fleet": FLEET, **more}
            file.write_text(json.dumps({"pools": [pool]}))

        configure()
        gateway = stack.enter_context(Gateway("--config", str(file)))
        client = stack.enter_context(gateway.client())
        wait_for(client, 50)
        load = stack.enter_context(Load(gateway.url, expected))
        load.more(100)

        @contextmanager
        def trouble(what: str, afterwards: int = AFTERWARDS) -> Iterator[None]:
            since, at = len(load.ends), time.monotonic()
            yield
            load.more(afterwards)
            print(f"{what}: {len(load.ends) - since} requests, {recovery(load, since, at)}")

        with trouble("ten replicas killed"):
            killed.kill()
            wait_for(client, 40)
        with trouble("ten replicas back"):
            killed.start()
            wait_for(client, 50)
        # On a busy machine few streams are under way: on until some had to go on elsewhere.
        for flaps in count(1):
            with trouble("ten replicas killed and started at once"):
                eventually(lambda: streams(client, flapping.urls), "streams on the ten")
                flapping.kill()
                flapping.start()
            if flaps >= 3 and metric(client, "penstock:gateway_failover_seconds_count") > 0:
                break
            assert flaps < 30, "no stream had to go on elsewhere"
        with trouble("ten replicas hang"):
            hung.sim.signal(signal.SIGSTOP)
            stack.callback(hung.sim.signal, signal.SIGCONT)
            eventually(lambda: ready(client) <= 40, "forty replicas")
        with trouble("they go on"):
            hung.sim.signal(signal.SIGCONT)
            wait_for(client, 50)
        with trouble("the list changes"):
            for kept in (25, 50, 10, 50):
                listed.write_text("\n".join(urls[-kept:]))
                wait_for(client, kept)
        with trouble("the configuration changes"):
            for profile in ({"scorers": [{"name": "running"}]}, {"picker": "round-robin"}):
                configure(profile={"scorers": [{"name": "queue"}], **profile})
                load.more(50)
            configure()
        wait_for(client, 50)
        load.__exit__()
        outcomes = Counter(end.outcome for end in load.ends)
        lost = metric(client, "penstock:gateway_failovers_lost_total")
        went_on = metric(client, "penstock:gateway_failover_seconds_count")
        print(f"{dict(outcomes)}; {went_on:.0f} streams went on elsewhere, {lost:.0f} could not")
        assert set(outcomes) == {"finished"}
        assert lost == 0


def test_a_name_whose_addresses_change(tmp_path: Path) -> None:
    """In a mount namespace with an /etc/hosts of its own: a name's addresses come and go."""
    unshare = shutil.which("unshare")
    probe = [unshare or "unshare", "--mount", "true"]
    if unshare is None or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("mount namespaces cannot be made here")
    hosts, port = tmp_path / "hosts", free_ports(1)

    def resolve(*numbers: int) -> None:
        hosts.write_text("".join(f"127.1.0.{number} replicas.test\n" for number in numbers))

    def addresses(client: httpx.Client) -> set[int]:
        page = client.get("/metrics").text
        found = re.findall(r'gateway_replica_ready\{.*replica="127.1.0.(\d+):.*"\} 1', page)
        return set(map(int, found))

    def wait_for(numbers: set[int]) -> None:
        eventually(lambda: addresses(client) == numbers, f"addresses {numbers}")

    prefix = [unshare, "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts; exec "$@"', "sh"]
    file = tmp_path / "gateway.yaml"
    pool = {"name": "p", "dns": f"replicas.test:{port}", "fleet": FLEET}
    file.write_text(json.dumps({"pools": [pool]}))
    resolve(1, 2)
    with ExitStack() as stack:
        flags = ("--port", str(port), "--host")
        sims = [stack.enter_context(Sim(*flags, f"127.1.0.{number}")) for number in range(1, 4)]

        expected = asyncio.run(undisturbed(sims[0]))
        gateway = stack.enter_context(Gateway("--config", str(file), prefix=prefix))
        client = stack.enter_context(gateway.client())
        wait_for({1, 2})
        with Load(gateway.url, expected) as load:
            for numbers in ({1, 2, 3}, {3}, {1, 3}, {2, 3}):
                resolve(*numbers)
                wait_for(numbers)
                load.more(30)
            # A name that cannot be resolved changes nothing.
            resolve()
            load.more(50)
            assert addresses(client) == {2, 3}
        assert Counter(end.outcome for end in load.ends).keys() == {"finished"}
