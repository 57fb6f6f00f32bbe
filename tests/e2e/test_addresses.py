"""`--host ::`: both families, one that is missing, and what connects to such addresses."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.e2e.conftest import Serve
from tests.limits import HANG

SIM = ("sim", "--port", "0")
SERVERS: dict[str, tuple[str, ...]] = {
    "sim": SIM,
    "gateway": ("gateway", "--port", "0", "--backend", "http://[::1]:1"),
}
NO_IPV6 = Path(__file__).with_name("no_ipv6.py")


@contextmanager
def started(*words: str, ipv6: bool = True, but: str = "") -> Iterator[tuple[str, int]]:
    """Host and port where it listens: the first URL that it names, but this one."""
    child = subprocess.Popen(
        [sys.executable, *(("-m", "penstock") if ipv6 else (str(NO_IPV6),)), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert child.stdout is not None
        for line in child.stdout:
            told = re.sub(re.escape(but or "http://[::1]:1") + r"(?!\d)", "", line)
            if found := re.search(r"http://(\S+):(\d+)", told):
                yield found[1], int(found[2])
                return
        pytest.fail(f"{words} ended with {child.wait(HANG)}")
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=HANG)


def answers(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=HANG) as answer:
        return "data" in json.load(answer)


needs_ipv6 = pytest.mark.skipif(
    not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine to listen with"
)


@needs_ipv6
@pytest.mark.parametrize("server", SERVERS)
def test_every_address_is_of_both_families(server: str) -> None:
    with started(*SERVERS[server], "--host", "::") as (host, port):
        assert host == "[::]"
        assert answers(f"http://[::1]:{port}")
        assert answers(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("server", SERVERS)
def test_without_ipv6_every_address_is_of_ipv4(server: str) -> None:
    with started(*SERVERS[server], "--host", "::", ipv6=False) as (host, port):
        assert host == "0.0.0.0"
        assert answers(f"http://127.0.0.1:{port}")


@needs_ipv6
def test_a_gateway_forwards_to_an_address_of_ipv6() -> None:
    with started(*SIM, "--host", "::1") as (host, port):
        words = ("gateway", "--port", "0", "--host", "::1", "--backend", f"http://{host}:{port}")
        with started(*words) as (own, at):
            assert own == "[::1]"
            body = {"model": "sim", "prompt": "x", "max_tokens": 2}
            asked = urllib.request.Request(
                f"http://[::1]:{at}/v1/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(f"http://[::1]:{port}/v1/models", timeout=HANG) as models:
                body["model"] = json.load(models)["data"][0]["id"]
            asked.data = json.dumps(body).encode()
            with urllib.request.urlopen(asked, timeout=HANG) as answer:
                assert json.load(answer)["choices"]
            bench = ("bench", "serve", "--host", "::1", "--port", str(at), "--num-prompts", "2")
            done = subprocess.run(
                [sys.executable, "-m", "penstock", *bench, "--random-output-len", "2"],
                capture_output=True,
                text=True,
                timeout=HANG,
                check=False,
            )
            assert done.returncode == 0, done.stderr


@needs_ipv6
@pytest.mark.parametrize("words", [(), ("--replicas", "2")], ids=["one", "replicas"])
def test_a_server_and_its_replicas_have_both_families(serve: Serve, words: tuple[str, ...]) -> None:
    with serve("--host", "::", *words) as server:
        port = server.url.rpartition(":")[2]
        assert answers(f"http://[::1]:{port}")
        assert answers(f"http://127.0.0.1:{port}")


class Replica(BaseHTTPRequestHandler):
    """Answers everything, and keeps whom requests come from."""

    chains: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.chains.append(self.headers["x-forwarded-for"])
        self._answer({"choices": [], "model": "m"})

    def _answer(self, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@needs_ipv6
def test_a_client_of_ipv4_has_its_address_at_a_socket_of_both_families() -> None:
    """Not the address that the kernel gives it there, `::ffff:127.0.0.1`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Replica) as replica:
        threading.Thread(target=replica.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{replica.server_port}"
        words = ("gateway", "--port", "0", "--host", "::", "--backend", url)
        try:
            with started(*words, but=url) as (_, port):
                for host in ("127.0.0.1", "[::1]"):
                    body = json.dumps({"model": "m", "prompt": "x"}).encode()
                    asked = urllib.request.Request(
                        f"http://{host}:{port}/v1/completions",
                        body,
                        {"content-type": "application/json"},
                    )
                    urllib.request.urlopen(asked, timeout=HANG).close()
        finally:
            replica.shutdown()
    assert Replica.chains == ["127.0.0.1", "::1"]
