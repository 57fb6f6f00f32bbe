"""Limits of cgroups, on directory trees that look like the kernel's."""

import importlib
import os
import socket
import sys
from collections import deque
from pathlib import Path

import pytest

from penstock.config import machine as machine_module
from penstock.config.machine import available_memory, cpu_count, first_device, free_port

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """8 GiB free; `files` are below sys/fs/cgroup."""
    meminfo = f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n"
    limits = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return write(root, {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, **limits})


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_without_limits_all_that_is_free_is_available(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/user.slice\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"})
    assert available_memory(root) == 8 * GIB
    assert cpu_count(root) == 8


def test_version_2_limits_count_on_every_level(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/pod/container\n",
        {
            "pod/memory.max": f"{4 * GIB}\n",
            "pod/memory.current": f"{3 * GIB}\n",
            "pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "pod/cpu.max": "150000 100000\n",
            "pod/container/memory.max": "max\n",
            "pod/container/cpu.max": "400000 100000\n",
        },
    )
    assert available_memory(root) == 2 * GIB
    assert cpu_count(root) == 2


def test_version_1_limits_count(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n",
        {
            "memory/memory.limit_in_bytes": f"{3 * GIB}\n",
            "memory/memory.usage_in_bytes": f"{2 * GIB}\n",
            "memory/memory.stat": "total_inactive_file 1024\n",
            "cpu/cpu.cfs_quota_us": "300000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert available_memory(root) == GIB + 1024
    assert cpu_count(root) == 3


def test_version_1_without_limits(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "5:memory:/\n4:cpu:/\n",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": f"{12 * GIB}\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert available_memory(root) == 8 * GIB
    assert cpu_count(root) == 8


def test_a_quota_below_one_cpu_still_gives_one(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", {"cpu.max": "20000 100000\n"})
    assert cpu_count(root) == 1


def test_this_machine_has_cpus_and_memory() -> None:
    assert cpu_count() >= 1
    assert available_memory() > 0


@pytest.mark.parametrize("device", ["nvidiactl", "dxg"])
def test_a_gpu_needs_a_device_and_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    (tmp_path / "torch.py").touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch")
    assert first_device(tmp_path) is None
    write(tmp_path, {f"dev/{device}": ""})
    assert first_device(tmp_path) == "cuda"
    (tmp_path / "torch.py").unlink()
    importlib.invalidate_caches()
    assert first_device(tmp_path) is None


def test_a_free_port_is_none_that_the_system_or_ray_gives_away() -> None:
    """Ray refuses a port that another of its parts has by default: 52365, of the dashboard's agent,
    is one of those that a system gives to who asks for any.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = [free_port() for _ in range(300)]
    assert len(set(found)) == len(found)
    assert max(found) < min(lowest, 52_365)
    assert min(found) > 19_999, "workers of Ray"
    with socket.socket() as held:
        held.bind(("127.0.0.1", found[0]))
        held.listen()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine_module, "PORTS", range(found[0], found[0] + 2))
            patch.setattr(machine_module, "_given", deque())
            assert free_port() == found[0] + 1
