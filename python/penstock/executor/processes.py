"""The processes of a set of ranks: started together, watched, ended together."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.executor.exits import Exit

NOTICE = 5.0
"""Seconds in which ranks that are told to end do so before they are killed."""


class Processes:
    """A Python module with a job for each rank. `on_exit` is called once, as the first ends (on a
    thread).

    Ranks count from `first`; `host` is said with them where there are several hosts.

    Each gets its job as a line of text on its standard input, a pipe whose end it takes for the end
    of this process. Ranks that stand still see no end of anything: those of a main thread are ended
    by the kernel.
    """

    def __init__(
        self,
        module: str,
        jobs: Sequence[str],
        descriptors: Sequence[int],
        on_exit: Callable[[Exit], None],
        first: int = 0,
        host: str = "",
    ) -> None:
        self._on_exit = on_exit
        self._first = first
        self._where = f" on {host}" if host else ""
        self._all: list[subprocess.Popen[bytes]] = []
        self._handles: list[int] = []
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        try:
            for rank, job in enumerate(jobs, first):
                self._start(module, rank, job, descriptors)
        except BaseException:
            self.end(0.0)
            raise
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._all]

    def all_ended(self, timeout: float) -> bool:
        """Whether no rank is left, after at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for process in self._all:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                return False
        return True

    def end(self, notice: float = NOTICE) -> None:
        """Let the ranks go, kill those that stay longer than `notice`; returns when all are gone."""
        for process in self._all:
            if process.stdin:
                process.stdin.close()
        if not self.all_ended(notice):
            for handle in self._handles:
                _kill(handle)
            self.all_ended(NOTICE)
        if self._watcher.ident is not None:
            self._watcher.join(NOTICE)
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()

    def _start(self, module: str, rank: int, job: str, descriptors: Sequence[int]) -> None:
        # -P: a directory called penstock where the user happens to be must not stand in for the
        # package.
        command = [sys.executable, "-P", "-m", module, "--rank", str(rank)]
        if threading.current_thread() is threading.main_thread():
            # The kernel means the thread that starts a process; others may end before this process
            # does.
            command.append("--end-with-starter")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, pass_fds=descriptors)
        self._all.append(process)
        self._handles.append(os.pidfd_open(process.pid))
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # Gone already: the watcher says how.
            process.stdin.write(job.encode() + b"\n")

    def _watch(self) -> None:
        poll = select.poll()
        for handle in self._handles:
            poll.register(handle, select.POLLIN)
        ready = poll.poll()
        at = time.monotonic()
        place = self._handles.index(ready[0][0])
        process, rank = self._all[place], self._first + place
        status = process.wait()
        name = f"rank {rank} (process {process.pid}{self._where})"
        self._on_exit(Exit(rank, f"{name} {_describe(status)}", at, killed=status < 0))


def _describe(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name if -status in signal.valid_signals() else "unknown"
    return f"was killed by signal {-status} ({name})"


def _kill(handle: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
