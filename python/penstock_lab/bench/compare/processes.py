"""Process trees started by a comparison: CPU time, memory, suspension, resumption, termination.

Linux only, because it reads /proc. Signals are sent only to pids of the tree.
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
# State letters of /proc/PID/stat that count as stopped or ended. Z is a zombie: a process that has
# ended, but whose parent has not waited for it yet.
STOPPED, ENDED = "TZX", "ZX"


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name (which may contain spaces): state, parent,
    group, session.
    """
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _birth(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty if it does not exist."""
    try:
        return _stat(pid)[19]
    except OSError:
        return ""


def machine_cpu_seconds() -> float:
    """CPU seconds of all processors since boot, without idle time."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def _settle(pids: Sequence[int], states: str, patience: float = 2.0) -> None:
    """Wait until every process is in one of `states` or has ended, because signals are
    asynchronous. The timeout for all processes together is `patience` seconds.
    """
    deadline = time.monotonic() + patience
    for pid in pids:
        with contextlib.suppress(OSError):
            while _stat(pid)[0] not in states and time.monotonic() < deadline:
                time.sleep(0.005)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Context that defers termination signals to its end, so that no started process is left
    running.

    It uses signal handlers instead of a signal mask, because children would inherit a mask.
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
    """Context manager that pins this thread to `cpus`. Processes started inside inherit the
    pinning.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class ProcessTree:
    """A command and its descendants, in a session of their own. The session identifies descendants
    whose parent has ended. Ctrl-C in a terminal reaches only the comparison, which then ends the
    tree in order.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        cpus: Collection[int],
    ) -> None:
        """Start `command` on `cpus`, with `environment` added to the current one, and output to
        `log`.

        Raises:
            OSError: it cannot be started.
        """
        self.command = list(command)
        self.log = log
        # env(1) replaces itself with the command, so the pid stays the same.
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
        """Pids of living members, parents first."""
        children: dict[int, list[int]] = {}
        session = set()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    fields = _stat(int(entry))
                    children.setdefault(int(fields[1]), []).append(int(entry))
                    if int(fields[3]) == self.root.pid:
                        session.add(int(entry))
        # If the root was already waited for, its pid may have been reused.
        members = [self.root.pid] if self.alive() else []
        for pid in members:
            members.extend(children.get(pid, []))
        return members + sorted(session.difference(members))

    def cpu_seconds(self) -> float:
        """CPU seconds of the living processes of the tree, in user and kernel mode."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = _stat(pid)
                total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_SECOND

    def pss_mb(self) -> int:
        """Memory of all processes of the tree in MiB, as their proportional set size (PSS), which
        counts pages shared among them once.
        """
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
        """Suspend the processes of the tree, parents first. In the reverse order a parent could
        observe a stalled child.
        """
        pids = self.pids()
        self._signal(signal.SIGSTOP, pids)
        _settle(pids, STOPPED)

    def resume(self) -> None:
        """Resume every process of the tree, children first."""
        self._signal(signal.SIGCONT, self.pids()[::-1])

    def end(self, patience: float = 10.0) -> None:
        """Terminate the command. When it has ended, or after `patience` seconds, kill the remaining
        processes of the tree.
        """
        births = self._births()
        members = list(births)
        self._signal(signal.SIGCONT, members[::-1])
        self._signal(signal.SIGTERM, members[:1])
        deadline = time.monotonic() + patience
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        births |= self._births()
        # Another process may have reused a pid; its start time differs.
        left = [pid for pid, birth in births.items() if birth and _birth(pid) == birth]
        self._signal(signal.SIGKILL, left)
        self.root.wait()
        _settle(left, ENDED)

    def _births(self) -> dict[int, str]:
        """Start time by pid for each process of the tree; an empty text for a process that has
        ended.
        """
        return {pid: _birth(pid) for pid in self.pids()}


class Meter:
    """CPU accounting of one run: time of the server's process tree, if there is one, of this
    process, and of all other processes.
    """

    def __init__(self, tree: ProcessTree | None = None) -> None:
        self._tree = tree
        self._wall = time.monotonic()
        self._machine = machine_cpu_seconds()
        self._server = tree.cpu_seconds() if tree else 0.0
        self._client = time.process_time()

    def read(self) -> dict[str, float]:
        """CPU seconds of the server since the start of the run, and the share of the machine's CPU
        time (0 to 1) that other processes used.
        """
        server = self._tree.cpu_seconds() - self._server if self._tree else 0.0
        client = time.process_time() - self._client
        wall = time.monotonic() - self._wall
        foreign = machine_cpu_seconds() - self._machine - server - client
        # The kernel counts whole ticks, which may exceed the time of a short run.
        share = min(1.0, max(0.0, foreign) / wall / CPUS)
        return {"server_cpu_s": round(server, 2), "foreign_share": round(share, 4)}


def wait_until_quiet(limit: float, share: float = 0.05) -> bool:
    """Wait up to `limit` seconds for one second in which other processes use less than `share` (0
    to 1) of the machine's CPU time. Returns whether there was such a second.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        busy, mine, start = machine_cpu_seconds(), time.process_time(), time.monotonic()
        time.sleep(1.0)
        used = machine_cpu_seconds() - busy - (time.process_time() - mine)
        if used / (time.monotonic() - start) / CPUS < share:
            return True
    return False
