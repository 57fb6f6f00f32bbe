"""Process trees that a comparison started: their CPU time, their memory, stopping, resuming and
ending them.

Reads /proc, so Linux only. Signals go to the pids of the tree and to nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CPUS = os.cpu_count() or 1
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Letters of /proc/PID/stat. A process that ended stays a zombie until its parent asks.
STOPPED, ENDED = "TZX", "ZX"


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name (it may hold blanks): state, parent, group,
    session.
    """
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _birth(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty when there is none."""
    try:
        return _stat(pid)[19]
    except OSError:
        return ""


def machine_cpu_seconds() -> float:
    """CPU seconds of all processors since boot, idle time left out."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def _settle(pids: Sequence[int], states: str, patience: float = 2.0) -> None:
    """Wait until every process is in one of `states` or gone; signals take effect late."""
    deadline = time.monotonic() + patience
    for pid in pids:
        with contextlib.suppress(OSError):
            while _stat(pid)[0] not in states and time.monotonic() < deadline:
                time.sleep(0.005)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that end this process to the end of the block, so that no started process is
    lost.

    Handlers and not a signal mask, because children would inherit the mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.signal(number, note) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        signal.raise_signal(caught[0])


@contextlib.contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """Run this thread on `cpus` within the block; processes started inside stay on them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class ProcessTree:
    """A command and its descendants, in a session of their own: orphans are still found, and Ctrl-C
    in a terminal reaches only the comparison, which ends them in order.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        cpus: Collection[int],
    ) -> None:
        """Start `command` on `cpus` with `environment` on top of our own; its output goes to `log`.

        Raises:
            OSError: it cannot be started.
        """
        self.command = list(command)
        self.log = log
        # env(1) becomes the command, so the pid stays.
        added = (
            ["env", *(f"{key}={value}" for key, value in environment.items())]
            if environment
            else []
        )
        with log.open("wb") as sink, pinned(cpus):
            self.root = subprocess.Popen(
                [*added, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Living members, parents first."""
        children: dict[int, list[int]] = {}
        session = set()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    fields = _stat(int(entry))
                    children.setdefault(int(fields[1]), []).append(int(entry))
                    if int(fields[3]) == self.root.pid:
                        session.add(int(entry))
        # The pid of a root that was waited for may be in use again.
        members = [self.root.pid] if self.alive() else []
        for pid in members:
            members.extend(children.get(pid, []))
        return members + sorted(session.difference(members))

    def cpu_seconds(self) -> float:
        """User and system time of the living members."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = _stat(pid)
                total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_SECOND

    def pss_mb(self) -> int:
        """Proportional set size of all members in MiB: shared pages are counted once."""
        kib = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        kib += int(line.split()[1])
        return round(kib / 1024)

    def alive(self) -> bool:
        """Whether the command itself still runs."""
        return self.root.poll() is None

    def _signal(self, number: signal.Signals, pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """Freeze every member, parents first, so that none sees its child stall."""
        pids = self.pids()
        self._signal(signal.SIGSTOP, pids)
        _settle(pids, STOPPED)

    def resume(self) -> None:
        """Thaw every member, children first."""
        self._signal(signal.SIGCONT, self.pids()[::-1])

    def end(self, patience: float = 10.0) -> None:
        """Terminate the command, then kill the remaining members after `patience` seconds."""
        births = self._births()
        members = list(births)
        self._signal(signal.SIGCONT, members[::-1])
        self._signal(signal.SIGTERM, members[:1])
        deadline = time.monotonic() + patience
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        births |= self._births()
        # A pid may be in use again; the start time tells.
        left = [pid for pid, birth in births.items() if birth and _birth(pid) == birth]
        self._signal(signal.SIGKILL, left)
        self.root.wait()
        _settle(left, ENDED)

    def _births(self) -> dict[int, str]:
        """Members with their start time, empty for one that is gone."""
        return {pid: _birth(pid) for pid in self.pids()}


class Meter:
    """CPU accounting of one run: server tree, this process, all others."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._wall = time.monotonic()
        self._machine = machine_cpu_seconds()
        self._server = tree.cpu_seconds()
        self._client = time.process_time()

    def read(self) -> dict[str, float]:
        """Server CPU seconds, and the share of the whole machine used by others (0 to 1)."""
        server = self._tree.cpu_seconds() - self._server
        client = time.process_time() - self._client
        wall = time.monotonic() - self._wall
        foreign = machine_cpu_seconds() - self._machine - server - client
        return {
            "server_cpu_s": round(server, 2),
            "foreign_share": round(max(0.0, foreign) / wall / CPUS, 4),
        }


def wait_until_quiet(limit: float, share: float = 0.05) -> bool:
    """Wait at most `limit` seconds for one second in which others use less than `share` of the
    machine.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        busy, mine, start = machine_cpu_seconds(), time.process_time(), time.monotonic()
        time.sleep(1.0)
        used = machine_cpu_seconds() - busy - (time.process_time() - mine)
        if used / (time.monotonic() - start) / CPUS < share:
            return True
    return False
