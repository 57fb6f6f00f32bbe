"""End of an own Ray cluster, also after a kill of its engine.

Ray's agents outlive a killed engine by a minute. So a small process, this file run as a script,
keeps handles of the cluster's processes and kills the remaining ones when its standard input ends.
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
    """Reaper of all descendants that this process has when it is created."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", __file__]
        pids = descendants(os.getpid())
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # No reaper then: work does not need it.
            self._process.stdin.write(" ".join(map(str, pids)).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Kill the remaining processes; returns when the reaper has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(NOTICE)


def descendants(pid: int) -> list[int]:
    """Process ids of all descendants."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # Ended meanwhile.
                found += map(int, children.read_text().split())
    return found[1:]


def main() -> int:
    handles = []
    for pid in sys.stdin.buffer.readline().split():
        # Process ids are reused, handles are not.
        with suppress(ProcessLookupError):
            handles.append(os.pidfd_open(int(pid)))
    sys.stdin.buffer.read()
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
