"""Reports loading progress on standard error: one line that is overwritten on a terminal, else a
log line every few seconds.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable

from penstock.config import EngineConfig
from penstock.engine.startup import StageSink, Started, start

STDERR = 2
INTERVAL = 5.0
"""Seconds between two log lines, and before the first."""
COLUMNS = 80
CLEAR = "\r\x1b[K"

log = logging.getLogger("penstock.engine")


class LoadReport:
    """Receives the lines of a `penstock.core.progress.LoadProgress`; create it when loading starts.
    `terminal`: whether standard error is a terminal.
    """

    def __init__(
        self,
        terminal: bool,
        descriptor: int = STDERR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terminal, self._descriptor, self._clock = terminal, descriptor, clock
        self._due = clock() + INTERVAL
        self._shown = False

    def __call__(self, line: str) -> None:
        text = f"loading weights: {line}"
        if self._terminal:
            # End with a carriage return, so that output of other processes starts at the left
            # margin.
            self._shown = self._write(f"{CLEAR}{text[: self._width()]}\r") or self._shown
        elif self._clock() >= self._due:
            self._due = self._clock() + INTERVAL
            log.info("%s", text)

    def end(self) -> None:
        """Erase the line from the terminal."""
        if self._shown:
            self._write(CLEAR)
            self._shown = False

    def _width(self) -> int:
        """Terminal width minus one, because a wrapped line could not be overwritten."""
        try:
            columns = os.get_terminal_size(self._descriptor).columns
        except OSError:
            columns = 0
        return (columns or COLUMNS) - 1

    def _write(self, text: str) -> bool:
        """Write `text` if that does not block, so that a suspended or closed terminal cannot delay
        the load; returns whether it was written.
        """
        try:
            _, writable, _ = select.select([], [self._descriptor], [], 0)
            return bool(writable) and os.write(self._descriptor, text.encode()) > 0
        except OSError:
            return False


def on_terminal(descriptor: int = STDERR) -> bool:
    """Whether the standard error stream is a terminal."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def start_reported(
    config: EngineConfig, on_stage: StageSink, terminal: bool, *, arrivals: bool = True
) -> Started:
    """`penstock.engine.startup.start`, with progress reports."""
    report = LoadReport(terminal)

    def on_stage_alone(name: str, seconds: float, detail: str) -> None:
        report.end()
        on_stage(name, seconds, detail)

    try:
        return start(config, on_stage_alone, arrivals=arrivals, on_progress=report)
    finally:
        report.end()
