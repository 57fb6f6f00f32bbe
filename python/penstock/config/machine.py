"""The CPUs and the memory that this process may use, within the limits of cgroup v1 and v2; free
ports; properties of the processors.

`root` replaces `/`, so that tests can supply their own machine.
"""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import secrets
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from penstock.config.devices import DEVICES

ROOT = Path("/")
NO_LIMIT = 2**60
"""In bytes: a memory limit of cgroup v1 above this value means unlimited."""


PORTS = range(20_000, 32_000)
"""Ports from which `free_port` chooses, outside the ephemeral range of Linux and outside Ray's
defaults (6379, 8265, 10001 to 19999, 52365). Ray refuses a port that is the default of another of
its parts.
"""
_given: deque[int] = deque(maxlen=len(PORTS) // 2)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free at present. It was not returned by recent calls."""
    while True:
        port = secrets.choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        _given.append(port)
        return port


def cpu_count(root: Path = ROOT) -> int:
    """Number of CPUs that this process may use: those in its affinity mask, or fewer if a cgroup
    quota is lower; at least 1.
    """
    count = len(os.sched_getaffinity(0))
    quotas = [quota for quota in _cpu_quotas(root) if quota > 0]
    return max(1, min([count, *(math.ceil(quota) for quota in quotas)]))


def available_memory(root: Path = ROOT) -> int:
    """Bytes of memory that are free before the machine, or a cgroup of this process, is full. Page
    cache that can be reclaimed counts as free.
    """
    found = [_meminfo(root), *_cgroup_free(root)]
    return max(0, min(found))


def cpuinfo(key: str, root: Path = ROOT) -> list[str]:
    """Values of a key in /proc/cpuinfo, one for each processor; empty if there is no such file."""
    pairs = (line.partition(":") for line in _read(root / "proc/cpuinfo").splitlines())
    return [value.strip() for name, _, value in pairs if name.strip() == key]


def first_device(root: Path = ROOT) -> str | None:
    """The first device of the table whose driver, torch and plugin are installed on this machine;
    None if there is none. Imports neither torch nor the plugin.
    """
    for kind in DEVICES.values():
        modules = ("torch", *filter(None, (kind.plugin,)))
        if any((root / name).exists() for name in kind.files) and all(
            importlib.util.find_spec(module) is not None for module in modules
        ):
            return kind.name
    return None


def _cpu_quotas(root: Path) -> Iterator[float]:
    for directory in _cgroup_directories(root, ""):
        words = _read(directory / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            yield int(words[0]) / int(words[1])
    for directory in _cgroup_directories(root, "cpu"):
        quota, period = (
            _number(directory / "cpu.cfs_quota_us"),
            _number(directory / "cpu.cfs_period_us"),
        )
        if quota and period and quota > 0:
            yield quota / period


def _meminfo(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_free(root: Path) -> Iterator[int]:
    for directory in _cgroup_directories(root, ""):
        yield from _free(directory, "memory.max", "memory.current", "inactive_file")
    for directory in _cgroup_directories(root, "memory"):
        yield from _free(
            directory, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        )


def _free(directory: Path, limit_file: str, usage_file: str, cache_field: str) -> Iterator[int]:
    limit, usage = _number(directory / limit_file), _number(directory / usage_file)
    if limit is None or usage is None or limit >= NO_LIMIT:
        return
    reclaimable = 0
    for line in _read(directory / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == cache_field:
            reclaimable = int(value)
    yield limit - usage + reclaimable


def _cgroup_directories(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's cgroup and of its ancestors, for a controller of version 1. The
    controller "" selects the unified hierarchy of version 2.

    In a container, /proc/self/cgroup may show a path of the host. Then only the top of the mount
    exists.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller not in names.split(","):
            continue
        top = root / "sys/fs/cgroup" / controller
        here = top / path.strip("/")
        while here != top:
            if here.is_dir():
                yield here
            here = here.parent
        yield top


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None
