"""Progress of a load in native code, by a thread that looks at what it has read: the load waits for
no report.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from penstock.core.progress import LoadProgress, Report

LOOK = 0.25
"""Seconds between two looks."""


class ReadCount(Protocol):
    """Such as `penstock._native.ReadCount`."""

    @property
    def total(self) -> int:
        """Bytes to read; 0 before they are known."""

    @property
    def read(self) -> int:
        """Bytes read so far."""


@contextmanager
def watched(count: ReadCount, report: Report) -> Iterator[None]:
    """Report what is read in here."""
    ended = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(count, report, ended), name="load progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(count: ReadCount, report: Report, ended: threading.Event) -> None:
    while not count.total:
        if ended.wait(LOOK):
            return
    progress, seen, over = LoadProgress(count.total, report), 0, False
    # The listener may be gone: the load finds that out by itself.
    with suppress(ConnectionError):
        while not over:
            over = ended.wait(LOOK)
            read = count.read
            progress.add(read - seen)
            seen = read
