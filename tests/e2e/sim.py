"""`penstock sim` as a process, watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import TracebackType

import httpx

from tests.e2e.server import HANG, eventually


class Sim:
    """`penstock sim FLAGS`; leaving the block stops it with SIGTERM and checks that it ends with
    status 0.
    """

    def __init__(self, *flags: str, replicas: int = 1) -> None:
        self.replicas = replicas
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "sim", "--replicas", str(replicas), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(line.rstrip("\n") for line in self.process.stdout)

    @property
    def urls(self) -> list[str]:
        marked = [
            line.split("listening on ") for line in self.log if "listening on http://" in line
        ]
        return [parts[1] for parts in marked]

    @property
    def url(self) -> str:
        return self.urls[0]

    def client(self, replica: int = 0) -> httpx.Client:
        return httpx.Client(base_url=self.urls[replica], timeout=HANG)

    def wait(self) -> int:
        status = self.process.wait(HANG)
        self._reader.join(HANG)
        return status

    def __enter__(self) -> Sim:
        eventually(
            lambda: len(self.urls) == self.replicas or self.process.poll() is not None,
            "a simulated server",
        )
        assert len(self.urls) == self.replicas, self.log
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is not None:
            self.wait()
            return
        self.process.send_signal(signal.SIGTERM)
        status = self.wait()
        if kind is None:
            assert status == 0, self.log
