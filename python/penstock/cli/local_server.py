"""Starts a server for a command of this process, and reads streamed answers."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from penstock.config import gather, openai_api_key
from penstock.core import PenstockError

HOST = "127.0.0.1"
START_TIMEOUT = 120.0
STOP_TIMEOUT = 20.0


def serve_command(model: str, port: int) -> list[str]:
    words = ["serve", model, "--host", HOST, "--port", str(port)]
    return [sys.executable, "-P", "-m", "penstock", *words]


def wait_until_ready(
    server: subprocess.Popen[bytes], port: int, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Wait until the server is ready, and call `meanwhile` repeatedly. Raises PenstockError if the
    server ends, or is not ready within START_TIMEOUT seconds.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise PenstockError(
                f"the server ended with status {server.returncode} before it was ready"
            )
        if is_ready(port):
            return
        meanwhile()
        time.sleep(0.02)
    raise PenstockError(f"the server was not ready within {START_TIMEOUT:.0f} s")


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


def authorization() -> dict[str, str]:
    key = api_key()
    return {"Authorization": f"Bearer {key}"} if key else {}


def api_key() -> str | None:
    """The API key from the environment, which client and server both use."""
    keys = gather({}, None).get("api_key")
    return str(keys.texts[0]) if keys else openai_api_key()


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, object]]:
    """The events of a streamed answer. Raises PenstockError if the stream ends before its last
    event.
    """
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if data == "[DONE]":
            return
        if data.startswith("{"):
            yield json.loads(data)
    raise PenstockError("the answer broke off: the connection was closed before its end")


def stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is not None:
        return
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
