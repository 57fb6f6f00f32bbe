"""Progress of loading weights, as human-readable lines."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

INTERVAL = 1.0
"""Seconds between two lines, and before the first."""
WINDOW = 5
"""Number of recent lines over which the rate is averaged. The rate varies, because parts of a file
are often in the page cache.
"""

Report = Callable[[str], None]
"""Function that receives progress lines. Any thread may call it, but not two at once."""


def silent(line: str) -> None:
    """Discard the line."""


class ProgressLine(str):
    """A line of progress with the share (0 to 1) of the load that is complete. The lowest share
    identifies the slowest rank.
    """

    share: float

    def __new__(cls, text: str, share: float) -> ProgressLine:
        made = super().__new__(cls, text)
        made.share = share
        return made


class LoadProgress:
    """Counts loaded bytes and reports lines such as `4.1 of 15.3 GiB (26%), 1.92 GiB/s, 5.8 s
    left`: at most one a second, and a last one at the end. A load that takes less than a second
    reports nothing. Timing starts at construction.
    """

    def __init__(
        self,
        total: int,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total` is in bytes. `report` is called on one of the threads that call `add`."""
        self._total, self._report, self._clock = total, report, clock
        self._lock, self._reporting = threading.Lock(), threading.Lock()
        self._loaded = 0
        self._began = clock()
        self._due = self._began + INTERVAL
        self._seen: deque[tuple[float, int]] = deque([(self._began, 0)], maxlen=WINDOW)

    def add(self, count: int) -> None:
        """Count `count` more loaded bytes. Thread-safe; only the thread that adds the last bytes
        waits for a report.
        """
        with self._lock:
            ended = self._loaded < self._total <= self._loaded + count
            self._loaded += count
            now = self._clock()
            due = self._began + INTERVAL if ended else self._due
            if now < due or (self._loaded >= self._total and not ended):
                return
            self._due = now + INTERVAL
            line = self._last(now) if ended else self._line(now)
        if self._reporting.acquire(blocking=ended):
            try:
                self._report(line)
            finally:
                self._reporting.release()

    def _line(self, now: float) -> ProgressLine:
        since, before = self._seen[0]
        self._seen.append((now, self._loaded))
        rate = (self._loaded - before) / (now - since)
        parts = [of_total(self._loaded, self._total), f"{size(rate)}/s"]
        if rate > 0:
            parts.append(f"{duration((self._total - self._loaded) / rate)} left")
        return ProgressLine(", ".join(parts), self._loaded / self._total)

    def _last(self, now: float) -> ProgressLine:
        seconds = now - self._began
        rate = size(self._total / seconds)
        return ProgressLine(f"{size(self._total)} in {duration(seconds)}, {rate}/s", 1.0)


def size(count: float) -> str:
    """Format a number of bytes in GiB, or in MiB below one GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def of_total(loaded: int, total: int) -> str:
    share = f"({100 * loaded // total}%)"
    if total >= 2**30:
        return f"{loaded / 2**30:.2f} of {total / 2**30:.2f} GiB {share}"
    return f"{loaded / 2**20:.0f} of {total / 2**20:.0f} MiB {share}"


def duration(seconds: float) -> str:
    """Format seconds, for example `5.8 s` or `2 min 05 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"
