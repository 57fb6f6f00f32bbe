"""Processes of this host as /proc shows them, and what they leave in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.config import shared_memory_directory

SHARED_MEMORY = ("penstock-*", "sem.hdr*", "sem.obj*")
"""Directories of ranks, and the semaphores of Ray's compiled graphs."""


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return False
    return state not in "ZX"


def descendants(pid: int) -> list[int]:
    """A process and its descendants, itself first."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def memory_files() -> set[str]:
    """Shared memory that dead processes left, and what this process and its descendants have.
    Suites that run at the same time have ranks, too: files of other live processes do not count.
    """
    directory = shared_memory_directory()
    names = {path.name for pattern in SHARED_MEMORY for path in directory.glob(pattern)}
    ours = set(descendants(os.getpid()))
    return {name for name in names if (owner := owner_of(name)) in ours or not is_alive(owner)}


def owner_of(name: str) -> int:
    """The process id in a file's name (penstock-PID-N, sem.hdrPID-TIME); 0 without one."""
    digits = name.removeprefix("penstock-").removeprefix("sem.hdr").removeprefix("sem.obj")
    pid, _, _ = digits.partition("-")
    return int(pid) if pid.isdecimal() else 0
