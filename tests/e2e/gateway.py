"""`penstock gateway` as a process, watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import TracebackType

import httpx

from tests.e2e.server import HANG, eventually


class Gateway:
    """`penstock gateway --port 0 FLAGS`; leaving the block stops it with SIGTERM and checks that
    it ends with status 0.
    """

    def __init__(self, *flags: str) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "gateway", "--port", "0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=clean,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    @property
    def url(self) -> str:
        (ready,) = [line for line in self.log if ", listening on " in line]
        return ready.split("listening on ")[1]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=HANG)

    def wait(self) -> int:
        status = self.process.wait(HANG)
        self._reader.join(HANG)
        return status

    def __enter__(self) -> Gateway:
        def started() -> bool:
            ready = any(", listening on " in line for line in self.log)
            return ready or self.process.poll() is not None

        eventually(started, "a gateway that listens")
        assert self.process.poll() is None, self.log
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.process.kill()
            self.wait()
            print("\n".join(self.log))
            return
        self.process.send_signal(signal.SIGTERM)
        assert self.wait() == 0, self.log
