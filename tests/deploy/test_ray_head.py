"""The script of a RayCluster's head, run with a real Ray as KubeRay would start it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from penstock.cli.main import main
from penstock.config.machine import free_port
from tests.deploy.conftest import HERE
from tests.e2e.server import eventually
from tests.limits import HANG
from tests.processes import descendants, is_alive
from tests.ray_cluster import environment, needs_ray

needs_ray()
pytestmark = [pytest.mark.slow, pytest.mark.ray]


def test_it_starts_ray_and_serves(
    plan: Callable[[str], Path], tmp_path: Path, model_file: Path
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path), "--claim", "c"]
    assert main(["deploy", "ray", str(plan(HERE)), *asked]) == 0
    cluster = yaml.safe_load((tmp_path / "ray-cluster-0.yaml").read_text())
    (container,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    metrics, gcs = free_port(), free_port()
    (script,) = container["args"]
    for there, here in (
        ("/models", str(model_file)),
        ("--port=8000", f"--port={free_port()}"),
        ("--metrics-port=8001", f"--metrics-port={metrics}"),
        (f"--kv-cache-memory-bytes={4 << 30}", f"--kv-cache-memory-bytes={128 << 20}"),
    ):
        assert there in script
        script = script.replace(there, here)
    folder = tempfile.mkdtemp(prefix="ray-")  # Short, as Ray wants it.
    start = (
        f"ray start --head --port={gcs} --num-cpus=1 --object-store-memory={128 << 20} --block "
        f"--include-dashboard=false --node-ip-address=127.0.0.1 --temp-dir={folder}"
    )
    variables = {
        **environment(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ADDRESS": f"127.0.0.1:{gcs}",
        "KUBERAY_GEN_RAY_START_CMD": start,
    }
    with (tmp_path / "log").open("wb") as log:
        command = [*container["command"], script]
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    started: set[int] = set()
    try:
        url = f"http://127.0.0.1:{metrics}/ready"
        eventually(lambda: answers(url, process, started), "the server on Ray")
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0
    finally:
        for pid in started:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def answers(url: str, process: subprocess.Popen[bytes], started: set[int]) -> bool:
    """Notes the processes that there are, of which Ray's outlive their parent."""
    started.update(descendants(process.pid))
    assert process.poll() is None
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
