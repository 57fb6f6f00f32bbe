"""Two pods on a real node share a disk tier: one reads the KV that the other one computed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock_ops.deploy.resources import USER
from tests.deploy.cluster.pods import MODEL, PORT, Deployed
from tests.e2e.server import eventually
from tests.limits import HANG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

PROMPT = " ".join(f"item {number}" for number in range(100))
"""More tokens than a chunk (256), fewer than the served length (512)."""
CHUNK = 256
TIER = ("--kv-tier", "disk:/var/kv,256MiB", "--kv-volume")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of the node that pods may write."""
    made = tmp_path / "kv"
    made.mkdir(mode=0o700)
    os.chown(made, USER, USER)
    return made


def test_pods_share_a_directory_of_their_node(deployed: Deployed, directory: Path) -> None:
    deployed.write(*TIER, f"hostpath:{directory}", replicas=2)
    assert deployed.run("apply") == 0
    _share(deployed, directory)


def test_pods_share_a_claim(deployed: Deployed, directory: Path) -> None:
    """The claim that the manifests make binds to a volume that the cluster offers."""
    deployed.write(*TIER, "claim", replicas=2)
    name = f"{deployed.namespace}-kv"
    volume: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(directory)},
            "claimRef": {"name": "tiny-kv", "namespace": deployed.namespace},
        },
    }
    deployed.node.call("POST", "/api/v1/persistentvolumes", volume)
    try:
        assert deployed.run("apply") == 0
        _share(deployed, directory)
    finally:
        deployed.node.call("DELETE", f"/api/v1/persistentvolumes/{name}")


def _share(deployed: Deployed, directory: Path) -> None:
    deployed.ready(2)
    first, second = (pod["status"]["podIP"] for pod in deployed.pods(component="server"))
    assert _ask(first)["disk"] == 0
    eventually(lambda: _is_stored(directory), "a stored chunk")
    assert _ask(second)["disk"] >= CHUNK


def _is_stored(directory: Path) -> bool:
    """Whether there are files besides the description of the model, and no more within a second."""
    before, now = _files(directory), set[Path]()
    if len(before) > 1:
        time.sleep(1)
        now = _files(directory)
    return before == now


def _files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def _ask(address: str) -> dict[str, int]:
    """Tokens of the prompt that a pod had in each tier."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"http://{address}:{PORT}/v1/completions", json=body, timeout=HANG)
    usage = answer.raise_for_status().json()["usage"]
    found: dict[str, int] = usage["prompt_tokens_details"]["cached_tokens_by_tier"]
    return found
