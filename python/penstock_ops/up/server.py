"""The server of a plan on this machine: its start, its readiness, its metrics, its end."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from penstock.core import PenstockError
from penstock_lab.bench.compare.processes import uninterrupted
from penstock_lab.bench.compare.recipe import Recipe, Values
from penstock_lab.bench.compare.server_under_test import ServerUnderTest
from penstock_lab.bench.compare.servers import Entry
from penstock_lab.bench.target import Address
from penstock_ops.plan.serving import without_settings
from penstock_ops.top.exposition import Page, parse
from penstock_ops.verify.finding import Finding

NAME = "server"
ENDING = (signal.SIGTERM, signal.SIGHUP)


class LocalServer:
    """A server on loopback, with all processes that it starts, and its log in a directory."""

    api_key = ""

    def __init__(self, command: Sequence[str], port: int, metrics_port: int) -> None:
        self.node = platform.node()
        self.command = list(command)
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-up-"))
        self._metrics = f"http://127.0.0.1:{metrics_port}"
        # {penstock} stands for all words, because texts in braces are placeholders in other words.
        recipe = Recipe(NAME, ["{penstock}"], ready_path="/health")
        words = [*without_settings(), *command]
        cpus = sorted(os.sched_getaffinity(0))
        values = Values(port, cpus, "", Path(), words, Path())
        self._server = ServerUnderTest(Entry(NAME, recipe), values, self._folder)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def is_started(self) -> bool:
        return self._server.pid is not None

    @property
    def process(self) -> str:
        return f"process {self._server.pid}"

    @property
    def logs(self) -> str:
        return str(self.log)

    def watched(self) -> AbstractContextManager[None]:
        """Nothing: only hosts are watched."""
        return nullcontext()

    def findings(self) -> list[Finding]:
        return []

    @property
    def log(self) -> Path:
        return self._folder / f"{NAME}.log"

    def start(self, patience: float) -> float:
        """Start, and wait until the server is ready. Returns the seconds that it took. Raises
        PenstockError if it ends before, or is not ready within `patience` seconds.
        """
        try:
            self._server.start(patience)
        except OSError as error:
            raise PenstockError(f"{self.command[0]}: {error.strerror}") from error
        return self._server.ready_s

    def metrics(self) -> Page:
        return metrics_of(self._metrics)

    def usage(self) -> Callable[[], tuple[str, float] | None]:
        """Begin to measure. The function gives this machine's name, with the share of its processor
        time that other programs used.
        """
        meter = self._server.meter()
        return lambda: (self.node, meter.read()["foreign_share"]) if meter else None

    def end(self, *, keep_log: bool = False) -> None:
        """End all processes of the server. A signal that arrives meanwhile is delayed."""
        with uninterrupted():
            self._server.end()
            if not keep_log:
                shutil.rmtree(self._folder, ignore_errors=True)


def metrics_of(base: str) -> Page:
    """The metrics at an address; a page without samples if the server does not answer."""
    try:
        return parse(Address(base).ask("/metrics").decode(errors="replace"))
    except PenstockError:
        return Page()


@contextmanager
def ending_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP a KeyboardInterrupt, so that the server is stopped first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
