"""Progress of a load on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

LINE_INTERVAL = 10.0
"""Seconds between lines if there is no terminal."""
RATE_WINDOW = 3.0
"""Live rates are averages over this many seconds."""
MIN_BAR = 10

Counts = Mapping[str, int]
"""Counts of `LoadRun.progress`: added, sent, open, completed, failed, events, bytes."""


class Progress(Protocol):
    def begin(self, what: str, total: int) -> None:
        """A load of `total` requests starts."""

    def show(self, counts: Counts) -> None:
        """Called a few times a second."""

    def end(self, counts: Counts) -> None:
        """The load has ended or was interrupted."""


class Silent:
    def begin(self, what: str, total: int) -> None:
        pass

    def show(self, counts: Counts) -> None:
        pass

    def end(self, counts: Counts) -> None:
        pass


class Lines:
    """A line every ten seconds, and one at the end. Each streamed event counts as one token, which
    is accurate for most servers.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._what = ""
        self._total = 0
        self._started = self._next = 0.0
        self._points: deque[tuple[float, int, int]] = deque()
        """Time, ended requests and events of the last seconds; empty before `begin`."""

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._started = what, total, self._clock()
        self._next = self._started + LINE_INTERVAL
        self._points = deque([(self._started, 0, 0)])

    def show(self, counts: Counts) -> None:
        text = self._text(counts)
        if (now := self._clock()) >= self._next:
            self._next = now + LINE_INTERVAL
            print(text, file=self._stream, flush=True)

    def end(self, counts: Counts) -> None:
        if self._points:
            print(self._text(counts), file=self._stream, flush=True)

    def _text(self, counts: Counts) -> str:
        now, ended = self._clock(), counts["completed"] + counts["failed"]
        requests, tokens = self._rates(now, ended, counts["events"])
        seconds = int(now - self._started)
        parts = [
            f"{self._what} {ended}/{self._total}",
            f"{seconds // 60}:{seconds % 60:02d}",
            f"{requests:.1f} req/s",
            f"{tokens:,.0f} tok/s",
            f"{counts['open']} open",
        ]
        if counts["failed"]:
            parts.append(f"{counts['failed']} failed")
        return "  ".join(parts)

    def _rates(self, now: float, ended: int, events: int) -> tuple[float, float]:
        """Ended requests and events per second, over the last few seconds."""
        points = self._points
        points.append((now, ended, events))
        while len(points) > 2 and points[1][0] <= now - RATE_WINDOW:
            points.popleft()
        start, ended_then, events_then = points[0]
        seconds = max(now - start, 1e-9)
        return (ended - ended_then) / seconds, (events - events_then) / seconds


class Bar(Lines):
    """One line that is redrawn in place."""

    def show(self, counts: Counts) -> None:
        text = self._text(counts)
        columns = shutil.get_terminal_size().columns
        room = columns - len(text) - 4
        share = (counts["completed"] + counts["failed"]) / max(self._total, 1)
        bar = f"[{'=' * round(share * room):<{room}}] " if room >= MIN_BAR else ""
        self._stream.write(f"\r\x1b[K{(bar + text)[: columns - 1]}")
        self._stream.flush()

    def end(self, counts: Counts) -> None:
        if self._points:
            self.show(counts)
            print(file=self._stream, flush=True)


def progress(disabled: bool, stream: TextIO | None = None) -> Progress:
    """A bar on a terminal, lines elsewhere, nothing when disabled."""
    stream = stream or sys.stderr
    if disabled:
        return Silent()
    return Bar(stream) if stream.isatty() else Lines(stream)
