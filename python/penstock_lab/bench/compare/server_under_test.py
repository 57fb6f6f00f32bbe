"""One server of a comparison: started, warmed up, measured, suspended while others run, ended."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.config.machine import free_port
from penstock.core import PenstockError
from penstock_lab.bench.compare.processes import Meter, ProcessTree, uninterrupted
from penstock_lab.bench.compare.recipe import Recipe, Values, check_requirements
from penstock_lab.bench.compare.servers import Entry
from penstock_lab.bench.target import FORBIDDEN, Address, NoAnswerError, StatusError

HOST = "127.0.0.1"
POLL_S = 0.02
READY_TIMEOUT = 2.0
"""Timeout of one readiness check in seconds."""
VERSION_TIMEOUT = 60.0
TAIL_LINES, TAIL_BYTES = 5, 1 << 14


class ServerUnderTest:
    """A server started from a recipe, or an existing one at a URL."""

    def __init__(self, entry: Entry, values: Values, logs: Path) -> None:
        """Configure the server. `start` runs it on `values.cpus`, with a log file in `logs`."""
        self.name = entry.name
        self.ready_s = 0.0
        self.command: list[str] = []
        self.environment: dict[str, str] = {}
        self._recipe = entry.recipe
        self._values = values
        self._log = logs / f"{entry.name}.log"
        self._tree: ProcessTree | None = None
        self.url = entry.url or f"http://{HOST}:{values.port}"
        if entry.recipe is not None:
            self._fill(entry.recipe)

    def _fill(self, recipe: Recipe) -> None:
        self.command = self._values.words(recipe.command)
        self.environment = {
            key: self._values.fill(value) for key, value in recipe.environment.items()
        }

    @property
    def note(self) -> str:
        return self._recipe.note if self._recipe else "was running already"

    def start(self, patience: float) -> None:
        """Start the server and wait until it is ready. `ready_s` is the time that this takes.

        Raises:
            PenstockError: a requirement is missing, the server ended, or it is not ready within
                `patience` seconds.
            OSError: the command cannot be started.
        """
        begin = time.monotonic()
        if self._recipe is not None:
            check_requirements(self._recipe, self._values)
            self._check_port()
            with uninterrupted():
                self._tree = ProcessTree(
                    self.command, self.environment, self._log, self._values.cpus
                )
        while not self._ready():
            if not self.alive():
                raise PenstockError(f"before it was ready it {self.ending()}")
            if time.monotonic() - begin > patience:
                raise PenstockError(f"it was not ready after {patience:.0f} s{self._tail()}")
            time.sleep(POLL_S)
        self.ready_s = round(time.monotonic() - begin, 2)

    def _check_port(self) -> None:
        """Raise an error if the port is in use: another server would be measured instead."""
        parts = urllib.parse.urlsplit(self.url)
        with socket.socket() as probe:
            probe.settimeout(READY_TIMEOUT)
            if parts.port and probe.connect_ex((parts.hostname or HOST, parts.port)) == 0:
                raise PenstockError(
                    f"something listens at {self.url} already; end it or choose another port"
                )

    def _ready(self) -> bool:
        path = self._recipe.ready_path if self._recipe else "/v1/models"
        return answers(self.url + path)

    @property
    def pid(self) -> int | None:
        """Process of the server; None if it was not started here."""
        return self._tree.root.pid if self._tree else None

    def version(self) -> str:
        """The first line with a digit that the recipe's version command prints; empty if there is
        no such command.
        """
        command = self._values.words(self._recipe.version_command) if self._recipe else []
        return first_line_with_digit(command) if command else ""

    def alive(self) -> bool:
        return self._tree is None or self._tree.alive()

    def ending(self) -> str:
        """How the server ended, with the last lines of its log."""
        return f"{exit_text(self._tree.root.returncode if self._tree else None)}{self._tail()}"

    def _tail(self) -> str:
        return f"; the end of {self._log}: {log_tail(self._log)}" if self._tree else ""

    def meter(self) -> Meter | None:
        """CPU accounting from now on; None for a server that was not started here."""
        return Meter(self._tree) if self._tree else None

    def pss_mb(self) -> int:
        return self._tree.pss_mb() if self._tree else 0

    def stop(self) -> None:
        """Suspend the server while others run, if it was started here."""
        if self._tree:
            self._tree.stop()

    def resume(self) -> None:
        if self._tree:
            self._tree.resume()

    def end(self) -> None:
        """End the server if it was started here. Idempotent."""
        if self._tree:
            self._tree.end()

    def facts(self) -> Mapping[str, object]:
        """The server's entry in comparison.json."""
        return {
            "version": self.version(),
            "command": self.command,
            "environment": self.environment,
            "note": self.note,
            "ready_s": self.ready_s,
        }


def answers(url: str) -> bool:
    """Whether `url` answers 2xx, 401 or 403. The last two come from a ready server that requires an
    API key; the load sends the key.
    """
    try:
        Address(url).ask("", timeout=READY_TIMEOUT)
    except StatusError as error:
        return error.status in FORBIDDEN
    except NoAnswerError:
        return False
    return True


def exit_text(status: int | None) -> str:
    """How a process ended, by its return code; a negative one is a signal."""
    if status is not None and status < 0:
        return f"was killed by signal {-status}"
    return f"ended with status {status}"


def log_tail(log: Path) -> str:
    """The last lines of a log, without reading all of it."""
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    return " / ".join(line.strip() for line in lines)


def port_of(entry: Entry) -> int:
    """The port in the entry's URL, or a free port if there is none."""
    return (urllib.parse.urlsplit(entry.url).port if entry.url else None) or free_port()


def first_line_with_digit(command: Sequence[str]) -> str:
    """First line with a digit in the output of `command`, or the reason why it could not run."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.strip() for line in lines if re.search(r"\d", line)), "unknown")
