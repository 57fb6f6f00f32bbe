"""A place for a node on this machine: network, mount and process namespaces and cgroups of its own,
so that nothing of it is left when its first process is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest

from tests.deploy.image import call
from tests.limits import HANG
from tests.namespaces import ip

INIT = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); sys.stdin.read()"
"""The first process: takes in orphans, and ends with the tests, whose death closes its input."""
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "pids",
    "devices",
    "freezer",
    "blkio",
    "systemd",
)
UNIFIED = "unified"
"""The hierarchy of version 2 beside them, in which runc makes the same cgroups."""
TOOLS = ("runc", "buildah", "mmdebstrap", "iptables", "conntrack", "gcc", "nsenter")
WRITTEN = ("/run", "/var/lib", "/var/log")
"""Where containerd, plugins and kubelet write without asking; empty in there."""
PLUGINS = Path("/usr/lib/cni")


def needs_privileges() -> None:
    """Skip, with the reason, where a node cannot be started."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not (PLUGINS / "bridge").exists():
        missing.append("containernetworking-plugins")
    if missing:
        pytest.skip(f"no node to test with: {', '.join(missing)} missing (apt-get install)")
    if os.geteuid() != 0:
        pytest.skip("no node to test with: namespaces and cgroups need root here")
    if not (CGROUPS / "memory").is_dir():
        pytest.skip("no node to test with: cgroups of version 1 are expected at /sys/fs/cgroup")


class Confined:
    """`address` is the node's, `host` this side's. `services` and `pods` are networks that are
    routed there. Leaving the block ends all processes in it.
    """

    def __init__(self, networks: tuple[str, ...]) -> None:
        own = os.getpid() % 65536
        self.name = f"pen{own}"
        net = f"198.{18 + (own >> 14) % 2}.{(own >> 6) & 255}"
        at = (own & 63) * 4
        self.address, self.host = f"{net}.{at + 1}", f"{net}.{at + 2}"
        self._networks = networks
        self._link = f"{self.name}n"
        self._process: subprocess.Popen[bytes] | None = None
        self._first = 0

    def __enter__(self) -> Self:
        try:
            self._connect()
            self._cgroups()
            self._begin()
        except OSError as error:
            self.__exit__()
            pytest.skip(f"no node to test with: {error}")
        return self

    def _connect(self) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{self.host}/30", "dev", self._link)
        ip("link", "set", self._link, "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/30", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        for network in self._networks:
            ip("route", "add", network, "via", self.address)

    @property
    def cgroup(self) -> str:
        return f"/{self.name}"

    def _cgroups(self) -> None:
        for controller in CONTROLLERS:
            made = CGROUPS / controller / self.name
            made.mkdir()
            if controller == "cpuset":
                (made / "cgroup.clone_children").write_text("1")
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (made / file).write_text((made.parent / file).read_text())

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{self.name}"),
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *(sys.executable, "-c", INIT),
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        end = time.monotonic() + HANG
        while not (found := children.read_text().split()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise OSError("unshare makes no namespaces here")
            time.sleep(0.01)
        self._first = int(found[0])
        call(*self.inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for folder in WRITTEN:
            call(*self.inside, "mount", "-t", "tmpfs", "confined", folder)

    @property
    def inside(self) -> tuple[str, ...]:
        """What goes before a command that runs in there, in the root directory."""
        return ("nsenter", "--target", str(self._first), "--mount", "--net", "--pid", "--")

    def __exit__(self, *_: object) -> None:
        if self._first:
            os.kill(self._first, signal.SIGKILL)
        if self._process is not None:
            self._process.communicate()
        for command in (("link", "del", self._link), ("netns", "del", self.name)):
            subprocess.run(["ip", *command], capture_output=True, check=False)
        for controller in (*CONTROLLERS, UNIFIED):
            _remove(CGROUPS / controller / self.name)


def _remove(cgroup: Path) -> None:
    """A cgroup and those below it, whose processes are ending."""
    if not cgroup.is_dir():
        return
    for below in [found for found in cgroup.iterdir() if found.is_dir()]:
        _remove(below)
    end = time.monotonic() + HANG
    while True:
        try:
            cgroup.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return
