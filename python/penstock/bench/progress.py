"""Progress of a load: a bar on a terminal, lines elsewhere. Always on stderr."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

LINE_INTERVAL = 10.0
"""Seconds between lines where there is no terminal."""
RATE_WINDOW = 3.0
"""Window of live rates, seconds."""
MIN_BAR = 10

Counts = Mapping[str, int]
"""Counts of `LoadRun.progress`: added, sent, open, completed, failed, events, bytes."""


class Progress(Protocol):
    def begin(self, what: str, total: int) -> None:
        """A load of `total` requests starts."""

    def show(self, counts: Counts) -> None:
        """Called a few times a second."""

    def end(self, counts: Counts) -> None:
        """It has ended, or was interrupted."""


class Silent:
    def begin(self, what: str, total: int) -> None:
        pass

    def show(self, counts: Counts) -> None:
        pass

    def end(self, counts: Counts) -> None:
        pass


class Rates:
    """Ended requests and events per second, over the last few seconds."""

    def __init__(self, now: float) -> None:
        self._points: deque[tuple[float, int, int]] = deque([(now, 0, 0)])

    def update(self, now: float, counts: Counts) -> tuple[float, float]:
        self._points.append((now, counts["completed"] + counts["failed"], counts["events"]))
        while len(self._points) > 2 and self._points[1][0] <= now - RATE_WINDOW:
            self._points.popleft()
        (start, ended, events), (_, ended_now, events_now) = self._points[0], self._points[-1]
        seconds = max(now - start, 1e-9)
        return (ended_now - ended) / seconds, (events_now - events) / seconds


class Meter:
    """The text of a progress line. An event counts as a token, which is true of most servers."""

    def __init__(self, what: str, total: int, now: float) -> None:
        self.what = what
        self.total = total
        self._started = now
        self._rates = Rates(now)

    def text(self, counts: Counts, now: float) -> str:
        ended = counts["completed"] + counts["failed"]
        requests, tokens = self._rates.update(now, counts)
        parts = [
            f"{self.what} {ended}/{self.total}",
            _clock(now - self._started),
            f"{requests:.1f} req/s",
            f"{tokens:,.0f} tok/s",
            f"{counts['open']} open",
        ]
        if counts["failed"]:
            parts.append(f"{counts['failed']} failed")
        return "  ".join(parts)


class Bar:
    """One line that is redrawn in place."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._meter: Meter | None = None

    def begin(self, what: str, total: int) -> None:
        self._meter = Meter(what, total, self._clock())

    def show(self, counts: Counts) -> None:
        if self._meter is None:
            return
        text = self._meter.text(counts, self._clock())
        columns = shutil.get_terminal_size().columns
        room = columns - len(text) - 4
        share = (counts["completed"] + counts["failed"]) / max(self._meter.total, 1)
        bar = f"[{'=' * round(share * room):<{room}}] " if room >= MIN_BAR else ""
        self._stream.write(f"\r\x1b[K{(bar + text)[: columns - 1]}")
        self._stream.flush()

    def end(self, counts: Counts) -> None:
        self.show(counts)
        self._stream.write("\n")
        self._stream.flush()
        self._meter = None


class Lines:
    """A line every ten seconds, and one at the end."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._meter: Meter | None = None
        self._next = 0.0

    def begin(self, what: str, total: int) -> None:
        now = self._clock()
        self._meter = Meter(what, total, now)
        self._next = now + LINE_INTERVAL

    def show(self, counts: Counts) -> None:
        now = self._clock()
        if self._meter is not None and now >= self._next:
            self._next = now + LINE_INTERVAL
            print(self._meter.text(counts, now), file=self._stream, flush=True)

    def end(self, counts: Counts) -> None:
        if self._meter is not None:
            print(self._meter.text(counts, self._clock()), file=self._stream, flush=True)
            self._meter = None


def progress(disabled: bool, stream: TextIO | None = None) -> Progress:
    """A bar on a terminal, lines elsewhere, nothing when disabled."""
    stream = stream or sys.stderr
    if disabled:
        return Silent()
    return Bar(stream) if stream.isatty() else Lines(stream)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
