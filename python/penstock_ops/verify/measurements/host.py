"""Numbers that calls of the kernel and of the resolver give."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import time
from collections.abc import Mapping

from penstock.config import shared_memory_directory
from penstock.config.machine import cpu_count

ARCH_PRCTL = 158
"""Number of the system call on x86-64."""
ARCH_REQ_XCOMP_PERM, XTILEDATA = 0x1023, 18
"""Request and feature for the tile registers of AMX (Documentation/arch/x86/xstate.rst)."""
TIME_ERROR, STA_UNSYNC = 5, 0x40
LOOKUPS = 5
UNRESOLVED = -1.0


class Timex(ctypes.Structure):
    """The first members of struct timex; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("room", ctypes.c_char * 256),
    )


def host() -> Mapping[str, float]:
    """Bytes of /dev/shm and those free, CPUs, the error of the request for AMX, the clock."""
    shared = os.statvfs(shared_memory_directory())
    return {
        "shared_memory_bytes": shared.f_blocks * shared.f_frsize,
        "shared_memory_free_bytes": shared.f_bavail * shared.f_frsize,
        "cpus": cpu_count(),
        "cpus_in_mask": len(os.sched_getaffinity(0)),
        "amx_error": amx_error(),
        **clock(),
    }


def amx_error() -> int:
    """Errno of a request for AMX; 0 if it is granted, -1 on another architecture. The grant ends
    with this process.
    """
    if platform.machine() != "x86_64":
        return -1
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA)
    return ctypes.get_errno() if refused else 0


def clock() -> Mapping[str, float]:
    """The kernel's account of its clock. Reads it only: `modes` is 0."""
    timex = Timex()
    state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    is_synchronised = state != TIME_ERROR and not timex.status & STA_UNSYNC
    return {"clock_synchronised": int(is_synchronised), "clock_error_ms": timex.maxerror / 1e3}


def names(*hosts: str) -> Mapping[str, float]:
    """Milliseconds of the slowest of some lookups of each host; UNRESOLVED if one fails."""
    return {host: _slowest(host) for host in hosts}


def _slowest(host: str) -> float:
    slowest = 0.0
    for _ in range(LOOKUPS):
        begin = time.monotonic()
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            return UNRESOLVED
        slowest = max(slowest, (time.monotonic() - begin) * 1e3)
    return slowest
