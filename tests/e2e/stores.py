"""Remote stores of our own on loopback: `redis-server`, and moto's server, which speaks S3."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from penstock.config.machine import free_port
from tests.e2e.server import eventually
from tests.limits import HANG

BUCKET = "kv-tests"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIDTEST",
    "AWS_SECRET_ACCESS_KEY": "not-on-the-command-line",
    "AWS_REGION": "us-east-1",
}
UNSIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}
"""moto takes callers without a name for strangers, and checks nothing else."""


@dataclass
class Store(ABC):
    """A server on loopback that keeps its port over restarts, without persistence."""

    directory: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.words(), cwd=self.directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(self.answers, "a store that answers")
        self.prepare()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(HANG)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @abstractmethod
    def words(self) -> list[str]:
        """The command that starts it; skips the test where that is not installed."""

    @abstractmethod
    def place(self) -> str:
        """For --kv-tier."""

    @abstractmethod
    def names(self) -> int:
        """How many values it holds."""

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), HANG):
            return True
        return False

    def prepare(self) -> None:  # noqa: B027 - Redis needs nothing
        """What a fresh one needs."""


class Redis(Store):
    def words(self) -> list[str]:
        if shutil.which("redis-server") is None:
            pytest.skip("no redis-server: apt-get install redis-server")
        port = str(self.port)
        return [
            "redis-server",
            "--port",
            port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]

    def place(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def names(self) -> int:
        with socket.create_connection(("127.0.0.1", self.port), HANG) as connection:
            connection.sendall(b"DBSIZE\r\n")
            return int(connection.recv(64).removeprefix(b":"))


class S3(Store):
    """Credentials come from the environment: see CREDENTIALS."""

    def words(self) -> list[str]:
        if find_spec("moto") is None or find_spec("flask") is None:
            pytest.skip("no S3 server: pip install 'moto[server]', or `make test-tools`")
        return [
            sys.executable,
            "-m",
            "moto.server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]

    def place(self) -> str:
        endpoint = f"endpoint=http://127.0.0.1:{self.port}"
        return f"s3://{BUCKET}/some/where,{endpoint},allow_http=true,timeout_s=5"

    def names(self) -> int:
        listed = self._call("GET", f"/{BUCKET}?list-type=2&prefix=some/where/")
        return listed.text.count("<Key>")

    def prepare(self) -> None:
        self._call("PUT", f"/{BUCKET}")

    def _call(self, method: str, path: str) -> httpx.Response:
        url = f"http://127.0.0.1:{self.port}{path}"
        answer = httpx.request(method, url, headers=UNSIGNED, timeout=HANG, trust_env=False)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer


KINDS: dict[str, type[Store]] = {"redis": Redis, "s3": S3}
