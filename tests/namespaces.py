"""Hosts on one machine: network namespaces with their own addresses, joined by a bridge."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Sequence

import pytest

SERIAL = itertools.count()


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Hosts:
    """`count` hosts, removed at the end of the block; their processes have ended by then."""

    def __init__(self, count: int) -> None:
        # 198.18.0.0/15 is set aside for tests of networks.
        own = os.getpid() % 65536
        net = f"198.{18 + (own >> 8) % 2}.{own & 255}"
        self._bridge = f"pen{own}"
        self.names = [f"pen{own}n{at}" for at in range(count)]
        # A namespace's end removes its links some time later, so that names are not used again.
        self.links = [f"pen{own}v{next(SERIAL)}" for _ in range(count)]
        self.addresses = [f"{net}.{at + 1}" for at in range(count)]
        self._gateway = f"{net}.254"

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except OSError as error:
            self.__exit__()
            pytest.skip(f"network namespaces cannot be made here: {error}")
        return self

    def __exit__(self, *_: object) -> None:
        for remove in [
            *(("netns", "del", name) for name in self.names),
            ("link", "del", self._bridge),
        ]:
            subprocess.run(["ip", *remove], capture_output=True, check=False)

    def _make(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", f"{self._gateway}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for name, link, address in zip(self.names, self.links, self.addresses, strict=True):
            ip("netns", "add", name)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", link, "master", self._bridge, "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "route", "add", "default", "via", self._gateway)

    def inside(self, host: int) -> Sequence[str]:
        """What goes before a command that is to run there."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self, host: int) -> None:
        """Cut the link silently."""
        ip("link", "set", self.links[host], "down")

    def mend(self, host: int) -> None:
        ip("link", "set", self.links[host], "up")

    def received(self, host: int) -> int:
        """Bytes that have gone to the host."""
        path = f"/sys/class/net/{self.links[host]}/statistics/tx_bytes"
        with open(path) as file:
            return int(file.read())
