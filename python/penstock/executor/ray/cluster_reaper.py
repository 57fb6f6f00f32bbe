"""Ends a Ray cluster that was started for one engine, even if that engine was killed.

Ray's agents outlive a killed engine by a minute. A small process therefore keeps handles (pidfds)
of the cluster's processes. When its standard input ends, that is, when the engine has ended, it
kills those that still run. It runs this file as a script.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

NOTICE = 5.0


class ClusterReaper:
    """Starts the reaper process. It watches all processes that descend from this process when it
    starts.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-I", __file__]
        pids = descendants(os.getpid())
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # The reaper failed to start. The engine works without it.
            self._process.stdin.write(" ".join(map(str, pids)).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Kill the processes that remain; returns when the reaper has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(NOTICE)


def descendants(pid: int) -> list[int]:
    """Process ids of all descendants of process `pid`."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # The process has ended meanwhile.
                found += map(int, children.read_text().split())
    return found[1:]


def main() -> int:
    handles = []
    for pid in sys.stdin.buffer.readline().split():
        # Process ids are reused, so a kill by id could hit another process; a pidfd always means
        # the same process.
        with suppress(ProcessLookupError):
            handles.append(os.pidfd_open(int(pid)))
    sys.stdin.buffer.read()
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
