"""Stores in which a server under test may keep KV: Redis, an S3 server, either behind a slow link,
and files that are not cached.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from penstock_lab.bench.compare.server_under_test import free_port

REDIS = "redis-server"
HOST = "127.0.0.1"
PATIENCE_S = 60.0
BUCKET = "kv-tiers"
S3_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_REGION": "us-east-1",
}
UNSIGNED = (
    "AWS4-HMAC-SHA256 Credential=benchmark/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)
"""Value of the Authorization header: placeholder credentials, which the S3 server does not
check.
"""


def missing(kind: str) -> str:
    """Names the package that a kind of store needs and how to install it; empty if it is there."""
    if kind == "redis" and shutil.which(REDIS) is None:
        return f"{REDIS} is not installed: apt-get install redis-server"
    if kind == "s3" and (find_spec("moto") is None or find_spec("flask") is None):
        return "no S3 server: pip install 'moto[server]'"
    return ""


@contextmanager
def redis(memory: str = "0") -> Iterator[int]:
    """Context with Redis on loopback, without persistence. `memory` is its maxmemory. Yields the
    port.
    """
    port = free_port()
    words = [REDIS, "--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no"]
    words += ["--maxmemory", memory, "--maxmemory-policy", "allkeys-lru"]
    with _running(words, port):
        yield port


@contextmanager
def s3() -> Iterator[int]:
    """Context with moto's S3 server on loopback, with the bucket BUCKET. Yields the port."""
    port = free_port()
    with _running([sys.executable, "-m", "moto.server", "--host", HOST, "--port", str(port)], port):
        made = urllib.request.Request(f"http://{HOST}:{port}/{BUCKET}", method="PUT")
        made.add_header("Authorization", UNSIGNED)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        direct.open(made, timeout=PATIENCE_S).close()
        yield port


@contextmanager
def _running(words: Sequence[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{words[0]} does not listen")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), 1.0):
        return True
    return False


class Link:
    """A TCP proxy in front of a port, on a thread. It passes at most `rate` bytes per second in
    each direction, over all connections together.

    With `stall`, nothing passes in the last `stall` seconds of each `period` of seconds.
    """

    def __init__(self, target: int, rate: float, stall: float = 0.0, period: float = 1.0) -> None:
        self.port = free_port()
        self._target = target
        self._rate = rate
        self._stall, self._period = stall, period
        self._free = [0.0, 0.0]
        """For each direction, the time when the bytes queued so far will have been sent."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        self._began = time.monotonic()
        started = asyncio.start_server(self._connected, HOST, self.port)
        asyncio.run_coroutine_threadsafe(started, self._loop).result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with ExitStack() as stack:
            stack.callback(writer.close)
            with suppress(OSError):
                there, back = await asyncio.open_connection(HOST, self._target)
                stack.callback(back.close)
                ways = (self._pass(0, reader, back), self._pass(1, there, writer))
                await asyncio.gather(*ways)

    async def _pass(
        self, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 16):
            begin = max(self._free[way], time.monotonic())
            self._free[way] = begin + len(data) / self._rate
            await asyncio.sleep(self._free[way] - time.monotonic())
            await asyncio.sleep(self._silent())
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    def _silent(self) -> float:
        """Seconds until the link passes bytes again; 0 if it does so now."""
        into = (time.monotonic() - self._began) % self._period
        return self._period - into if into > self._period - self._stall else 0.0


def forget_pages(directory: Path) -> None:
    """Write a directory's files to disk and drop them from the page cache."""
    os.sync()
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
