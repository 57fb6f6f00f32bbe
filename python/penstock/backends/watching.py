"""Progress of a load in native code. A thread polls the number of bytes read, so that the load
itself never waits until a report is received.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from penstock.core.progress import LoadProgress, Report

LOOK = 0.25
"""Poll interval in seconds."""


class ReadCount(Protocol):
    """Counter of the bytes that a load has read, such as `penstock._native.ReadCount`."""

    @property
    def total(self) -> int:
        """Bytes to read; 0 before they are known."""

    @property
    def read(self) -> int:
        """Bytes read so far."""


@contextmanager
def watched(count: ReadCount, report: Report) -> Iterator[None]:
    """Inside the block, report the progress of `count` from a thread."""
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
    # If the receiver of the reports has ended, the load itself raises the error.
    with suppress(ConnectionError):
        while not over:
            over = ended.wait(LOOK)
            read = count.read
            progress.add(read - seen)
            seen = read
