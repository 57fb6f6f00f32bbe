"""The end of a Ray cluster of our own, however its engine ended.

Ray's agents outlive a killed engine by a minute, in which they call a cluster that is gone. So a
small process, this file run by itself, knows the cluster's processes and kills what is left when
its standard input ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

NOTICE = 5.0


class Keeper:
    """Of all processes that this one has started, and those that they have."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", __file__]
        pids = descendants(os.getpid())
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # Then there is no keeper: nothing that is needed for work.
            self._process.stdin.write(" ".join(map(str, pids)).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Kill what is left; returns when the keeper is gone."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(NOTICE)


def descendants(pid: int) -> list[int]:
    """Of a process, without itself."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # Ended meanwhile.
                found += map(int, children.read_text().split())
    return found[1:]


def main() -> int:
    handles = []
    for pid in sys.stdin.buffer.readline().split():
        # A handle stays that process, whoever gets its number next.
        with suppress(ProcessLookupError):
            handles.append(os.pidfd_open(int(pid)))
    sys.stdin.buffer.read()
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
