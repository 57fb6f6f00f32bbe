"""Ranks as processes of this host: started, watched and ended together."""

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
from dataclasses import dataclass

WORKER = "penstock.executor.worker"
NOTICE = 5.0
"""Seconds for ranks to end by themselves, before they are killed."""
SETTLE = 0.5
"""Seconds to wait, after a rank has exited, for the report that another rank was killed. The exit
may be a consequence of that kill, and the kernel reports the kill later because it takes longer to
tear down a larger process.
"""


@dataclass(frozen=True, slots=True)
class RankExit:
    """Exit of a rank's process, as reported in errors."""

    rank: int
    reason: str
    at: float
    """Time at which the exit was noticed, in monotonic seconds of the host that noticed it."""
    killed: bool = False
    """Whether a signal killed the process. Such an exit is a cause, not a consequence of another
    rank's exit.
    """


class Processes:
    """One process for each rank, numbered from `first`. `on_exit` is called once, on a thread, when
    the first process ends. A process killed by a signal is reported in preference to others. `host`
    is named in errors if there are several hosts.

    A rank reads its job as one line from standard input. End of file on that pipe tells the rank
    that this process has ended. A stopped rank (SIGSTOP) cannot read, so the kernel kills it when
    this process ends, provided that the main thread started the rank.
    """

    def __init__(
        self,
        jobs: Sequence[str],
        descriptors: Sequence[int],
        on_exit: Callable[[RankExit], None],
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
                self._start(rank, job, descriptors)
        except BaseException:
            self.end(0.0)
            raise
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._all]

    def all_ended(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for all ranks to end; returns whether they have."""
        deadline = time.monotonic() + timeout
        for process in self._all:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                return False
        return True

    def end(self, notice: float = NOTICE) -> None:
        """Request all ranks to end, kill those that still run after `notice` seconds, and wait for
        their end.
        """
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

    def _start(self, rank: int, job: str, descriptors: Sequence[int]) -> None:
        # With -P, a directory named penstock in the working directory cannot shadow the package.
        command = [sys.executable, "-P", "-m", WORKER, "--rank", str(rank)]
        if threading.current_thread() is threading.main_thread():
            # The kernel kills the rank when the thread that started it ends. Only the main thread
            # lasts as long as the process.
            command.append("--end-with-starter")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, pass_fds=descriptors)
        self._all.append(process)
        self._handles.append(os.pidfd_open(process.pid))
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # The rank has already ended; the watcher reports it.
            process.stdin.write(job.encode() + b"\n")

    def _watch(self) -> None:
        poll = select.poll()
        for handle in self._handles:
            poll.register(handle, select.POLLIN)
        watched, timeout = len(self._handles), None
        first: RankExit | None = None
        while watched and (ready := poll.poll(timeout)):
            poll.unregister(ready[0][0])
            watched -= 1
            found = self._exit(ready[0][0])
            first = found if first is None or found.killed else first
            if found.killed:
                break
            timeout = 1e3 * SETTLE
        assert first is not None
        self._on_exit(first)

    def _exit(self, handle: int) -> RankExit:
        at = time.monotonic()
        index = self._handles.index(handle)
        process, rank = self._all[index], self._first + index
        status = process.wait()
        name = f"rank {rank} (process {process.pid}{self._where})"
        return RankExit(rank, f"{name} {_describe(status)}", at, killed=status < 0)


def _describe(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name if -status in signal.valid_signals() else "unknown"
    return f"was killed by signal {-status} ({name})"


def _kill(handle: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
