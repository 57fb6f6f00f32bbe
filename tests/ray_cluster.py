"""Ray clusters on this machine for tests: started in the foreground, ended by the numbers of their
processes.

Nothing here says `ray stop`, which would end the clusters of everybody.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.config.machine import free_port
from tests.limits import HANG
from tests.processes import descendants, is_alive

REPOSITORY = Path(__file__).resolve().parents[1]
TOKEN = secrets.token_hex(32)
"""One for all clusters: a process reads it once."""
STORE = 100 << 20
HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}
"""The cluster notices a killed node within two seconds and a silent one after half a minute. A busy
machine may keep the head's processes waiting for seconds, and a head that is dead to its own checks
ends the cluster.
"""


def needs_ray() -> None:
    """Skips a module of tests."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'penstock[ray]'", allow_module_level=True)


def environment() -> dict[str, str]:
    """For clusters, and for what joins them."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
    own["RAY_raylet_start_wait_time_s"] = f"{HANG:.0f}"
    own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {**os.environ, **HEALTH_CHECKS, **own}


class RayNode:
    """`ray start` in the foreground, possibly in a network namespace."""

    def __init__(
        self,
        arguments: Sequence[str],
        directory: Path,
        cpus: int,
        prefix: Sequence[str] = (),
        gpus: int = 0,
    ) -> None:
        common = [
            f"--num-cpus={cpus}",
            f"--num-gpus={gpus}",
            f"--object-store-memory={STORE}",
            "--include-log-monitor=false",
            "--disable-usage-stats",
            "--block",
        ]
        self.log = directory / f"start-{secrets.token_hex(4)}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-m",
                    "ray.scripts.scripts",
                    "start",
                    *arguments,
                    *common,
                ],
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + HANG
        while b"runtime started" not in self.log.read_bytes():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def raylet(self) -> int:
        (pid,) = [pid for pid in descendants(self.process.pid) if _name(pid) == "raylet"]
        return pid

    def stop(self) -> None:
        everything = descendants(self.process.pid)
        for pid in everything:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(HANG)


class RayCluster:
    """A head node; `address` is what others join. Leaving the block ends all nodes. `gpus` are
    counted, whether the machine has them or not.
    """

    def __init__(
        self, cpus: int, host: str | None = None, prefix: Sequence[str] = (), gpus: int = 0
    ) -> None:
        # Short: Ray puts sockets under it, whose paths have at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="ray-"))
        port = free_port()
        arguments = [
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            f"--temp-dir={self.directory}",
        ]
        arguments += [f"--node-ip-address={host}"] if host else []
        self.nodes = [RayNode(arguments, self.directory, cpus, prefix, gpus)]
        said = next(
            line for line in self.nodes[0].log.read_text().splitlines() if "Local node IP" in line
        )
        self.address = f"{said.rsplit(' ', 1)[1]}:{port}"

    def add(self, cpus: int, host: str | None = None, prefix: Sequence[str] = ()) -> RayNode:
        arguments = [f"--address={self.address}", *([f"--node-ip-address={host}"] if host else [])]
        self.nodes.append(RayNode(arguments, self.directory, cpus, prefix))
        return self.nodes[-1]

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            node.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def token_cluster(cpus: int, gpus: int = 0) -> Iterator[RayCluster]:
    """A head node that asks callers for a token, which this process has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        with RayCluster(cpus, gpus=gpus) as made:
            yield made


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
