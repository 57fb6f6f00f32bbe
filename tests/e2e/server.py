"""A real server: `penstock serve` as its users start it, watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import httpx

T = TypeVar("T")

HANG = 60.0
"""Seconds after which something is stuck. Says nothing about speed: the machine may be busy."""


def eventually(probe: Callable[[], T | None], what: str) -> T:
    """The first true answer of `probe`."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {HANG:.0f} s")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return False
    return state not in "ZX"


class Server:
    """`penstock serve MODEL --port 0 FLAGS`, in a process group and with a socket directory of its
    own. `module` stands in for `penstock`.

    Leaving the block stops it as an operator would, and checks what it leaves behind: exit status
    0, no process, no file.
    """

    def __init__(
        self,
        model: Path | str,
        runtime: Path,
        *flags: str,
        prefix: Sequence[str] = (),
        module: str = "penstock",
    ) -> None:
        self.runtime = runtime
        command = [
            *prefix,
            sys.executable,
            "-m",
            module,
            "serve",
            str(model),
            "--port",
            "0",
            *flags,
        ]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, "XDG_RUNTIME_DIR": str(runtime)},
            start_new_session=True,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def __enter__(self) -> Server:
        try:
            self.wait_ready()
        except BaseException:
            self.destroy()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.destroy()
            print(self.text())
        elif self.process.poll() is None:
            assert self.stop() == 0, self.text()

    def wait_ready(self) -> None:
        eventually(lambda: self.address or self.process.poll() is not None, "a ready server")
        assert self.address, self.text()

    @property
    def address(self) -> str | None:
        """Where it listens, such as http://host:port, once the ready line has named it."""
        ready = [line for line in self.log if ", listening on " in line]
        return ready[0].split("listening on ")[1].removesuffix('"}') if ready else None

    @property
    def url(self) -> str:
        assert self.address
        return self.address

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return "\n".join(self.log)

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=HANG, headers=headers)

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def engine(self) -> int:
        """The engine's process."""
        (pid,) = self.children()
        return pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM; the exit status, once nothing is left of the server."""
        children = self.children()
        self.signal(signal.SIGTERM)
        status = self.wait()
        assert not [pid for pid in children if is_alive(pid)]
        assert not list(self.runtime.iterdir()), "the socket's directory is gone"
        return status

    def wait(self) -> int:
        status = self.process.wait(HANG)
        self._reader.join(HANG)
        return status

    def destroy(self) -> None:
        """SIGKILL to the server; its engine dies with it, which the kernel sees to."""
        self.process.kill()
        self.wait()


def metric(client: httpx.Client, name: str) -> float:
    """The sample of a metric without labels of its own, such as `vllm:num_requests_running`."""
    lines = client.get("/metrics").text.splitlines()
    (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name + "{")]
    return float(value)
