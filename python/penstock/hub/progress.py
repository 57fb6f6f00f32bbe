"""Progress of downloads on standard error: a line that is rewritten in place on a terminal, else a
line every few seconds.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TextIO

from penstock.core.progress import LoadProgress
from penstock.hub.errors import shown

CLEAR = "\r\x1b[K"
INTERVAL = 15.0
"""Seconds between two lines if standard error is not a terminal."""


class Progress:
    """Reports the download called `label`. Thread-safe."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = shown(label, 60)
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._lock = threading.Lock()
        self._counter: LoadProgress | None = None
        self._shown = time.monotonic()
        self._line = False

    def begin(self, total: int) -> None:
        """Start a download of `total` bytes."""
        self._counter = LoadProgress(total, self._report) if total else None

    def add(self, count: int) -> None:
        """Record that `count` more bytes have arrived."""
        if self._counter is not None:
            self._counter.add(count)

    def note(self, text: str) -> None:
        """Print a sentence on a separate line."""
        with self._lock:
            label = "" if text.startswith(f"{self._label}: ") else f"{self._label}: "
            self._print(f"{CLEAR if self._line else ''}{label}{text}\n")
            self._line = False

    def end(self) -> None:
        """End the line on the terminal."""
        with self._lock:
            if self._line:
                self._print("\n")
                self._line = False

    def _report(self, line: str) -> None:
        with self._lock:
            text = f"{self._label}: {line}"
            if self._terminal:
                width = shutil.get_terminal_size().columns - 1
                self._print(f"{CLEAR}{text[:width]}")
                self._line = True
            elif time.monotonic() - self._shown >= INTERVAL:
                self._shown = time.monotonic()
                self._print(f"{text}\n")

    def _print(self, text: str) -> None:
        # A closed stream must not abort a download.
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass
