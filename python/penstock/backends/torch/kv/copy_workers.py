"""Worker threads for copies of KV blocks. A copy that hangs in the GPU's driver delays shutdown
until the deadline at most; then its thread is abandoned.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

Failed = Callable[[Exception], None]


class Job:
    """One copy or load on a worker thread: queued, running or ended."""

    def __init__(self, work: Callable[[], None], dropped: Callable[[], None]) -> None:
        self.work, self.dropped = work, dropped
        self.done = False
        """Whether the work completed. Stays False for a dropped or failed job."""
        self._ended = threading.Event()

    def wait(self) -> bool:
        """Wait until the job has ended. Returns True if its work completed, False if it failed or
        was dropped.
        """
        self._ended.wait()
        return self.done

    def end(self) -> None:
        self._ended.set()


class Workers:
    """Worker threads, which start jobs in the order of `submit`."""

    def __init__(self, name: str, threads: int, failed: Failed) -> None:
        """`failed` is called with the errors of jobs."""
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
        """Queue a job. `dropped` is called in place of `work` if the job never starts."""
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
        """Drop a queued job. Returns False if it has started or ended."""
        with self._changed:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
        _drop([job])
        return True

    def end(self, deadline: float) -> bool:
        """Drop queued jobs and wait for running ones, until `deadline` of the monotonic clock.
        Returns False on time-out: then a job still runs on an abandoned thread.
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
    """One worker thread for each direction (to host, to device), which copies one after another."""

    def __init__(self, failed: Failed) -> None:
        self.outward = Workers("kv-to-host", 1, failed)
        self.inward = Workers("kv-to-device", 1, failed)
