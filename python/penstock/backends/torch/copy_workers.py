"""Threads for copies, which end or are left behind: a copy that hangs in the driver holds up no
stop, and no exit of the process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

Failed = Callable[[Exception], None]


class Job:
    """Work that waits, runs or has ended."""

    def __init__(self, work: Callable[[], None], dropped: Callable[[], None]) -> None:
        self.work, self.dropped = work, dropped
        self.done = False
        """Whether the work was done to its end. A job that is dropped or fails ends without."""
        self._ended = threading.Event()

    def wait(self) -> bool:
        """Wait for its end; whether it was done."""
        self._ended.wait()
        return self.done

    def end(self) -> None:
        self._ended.set()


class Workers:
    """Threads that do jobs in the order of `submit`."""

    def __init__(self, name: str, threads: int, failed: Failed) -> None:
        """`failed` gets the errors of jobs."""
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], dropped: Callable[[], None]) -> Job:
        """`dropped` is called in place of `work` if that does not begin."""
        job = Job(work, dropped)
        with self._changed:
            closed = self._closed
            if not closed:
                self._waiting.append(job)
                self._changed.notify()
        if closed:
            _drop([job])
        return job

    def cancel(self, job: Job) -> bool:
        """Drop a job; False if it has begun."""
        with self._changed:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
        _drop([job])
        return True

    def end(self, deadline: float) -> bool:
        """Drop what has not begun and wait for the rest, until `deadline` of the monotonic clock.
        False: a job goes on, on a thread that is left behind.
        """
        with self._changed:
            self._closed = True
            dropped = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        _drop(dropped)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while job := self._next():
            try:
                job.work()
                job.done = True
            except Exception as error:  # noqa: BLE001 - the engine gets any error
                self._failed(error)
            finally:
                job.end()

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return self._waiting.popleft() if self._waiting else None


def _drop(jobs: list[Job]) -> None:
    for job in jobs:
        job.dropped()
        job.end()


class Lanes:
    """A thread for each direction, which starts copies and waits for them, one after another."""

    def __init__(self, failed: Failed) -> None:
        self.outward = Workers("kv-to-host", 1, failed)
        self.inward = Workers("kv-to-device", 1, failed)
