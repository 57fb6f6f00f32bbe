"""Commands of `penstock` as their users start them, watched from outside."""

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
from typing import Self, TypeVar

import httpx

from tests.limits import HANG
from tests.processes import is_alive

T = TypeVar("T")


def eventually(probe: Callable[[], T | None], what: str) -> T:
    """The first true answer of `probe`."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {HANG:.0f} s")


class Command:
    """`penstock WORDS` in a process of its own, watched from outside. `module` stands in for
    `penstock`.

    Leaving the block stops it as an operator would, and checks that it ends with status 0; after an
    error in the block it is killed, and its log is shown.
    """

    READY = ", listening on "
    """What precedes an address in the lines that name one."""

    def __init__(
        self,
        *words: str,
        prefix: Sequence[str] = (),
        module: str = "penstock",
        runtime: Path | None = None,
        addresses: int = 1,
    ) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        self.addresses = addresses
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**clean, "XDG_RUNTIME_DIR": str(runtime)} if runtime else clean,
            start_new_session=True,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))

    def __enter__(self) -> Self:
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
        eventually(lambda: self.is_ready() or self.process.poll() is not None, "a ready server")
        assert self.is_ready(), self.text()

    def is_ready(self) -> bool:
        return len(self.urls) >= self.addresses

    @property
    def urls(self) -> list[str]:
        """Where it listens, such as http://host:port, as far as its lines have named it."""
        named = [line.split(self.READY)[1] for line in self.log if self.READY in line]
        return [url.removesuffix('"}') for url in named]

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return "\n".join(self.log)

    def lines(self, *words: str, least: int = 1) -> list[str]:
        """The lines of the log with all of these words, once there are `least`: a line may come
        after what it reports.
        """

        def found() -> list[str] | None:
            some = [line for line in self.log if all(word in line for word in words)]
            return some if len(some) >= least else None

        return eventually(found, f"{least} lines of the log with {', '.join(words)}")

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=HANG, headers=headers)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(HANG)
        self._reader.join(HANG)
        return status

    def destroy(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.wait()


class Server(Command):
    """`penstock serve MODEL --port 0 FLAGS`, with a socket directory of its own.

    Requests wait at the engine without a bound unless FLAGS has one: the machine may be busy. An
    engine dies with its server, which the kernel sees to.
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
        words = ("serve", str(model), "--port", "0", "--max-queue-wait", "0", *flags)
        super().__init__(*words, prefix=prefix, module=module, runtime=runtime)

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def engine(self) -> int:
        """The engine's process."""
        (pid,) = self.children()
        return pid

    def stop(self) -> int:
        """SIGTERM; the exit status, once nothing is left of the server."""
        children = self.children()
        status = super().stop()
        assert not [pid for pid in children if is_alive(pid)]
        assert not list(self.runtime.iterdir()), "the socket's directory is gone"
        return status


def metric(client: httpx.Client, name: str) -> float:
    """The sample of a metric without labels of its own, such as `vllm:num_requests_running`."""
    lines = client.get("/metrics").text.splitlines()
    (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name + "{")]
    return float(value)
