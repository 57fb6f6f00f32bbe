"""Compose files of plans, and what Compose itself says of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from tests.deploy.conftest import HERE

Plan = Callable[[str], Path]


def made(plan: Plan, path: Path, kind: str, *words: str) -> dict[str, Any]:
    place = ("--image", "registry/engine:0", "--host-path", "/srv/models/my model")
    assert main(["deploy", "compose", str(plan(kind)), "-o", str(path), *place, *words]) == 0
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_each_replica_is_a_service_at_a_port_of_its_own(plan: Plan, tmp_path: Path) -> None:
    services = made(plan, tmp_path / "compose.yaml", HERE, "--port", "9000")["services"]
    assert list(services) == ["smollm2-135m-0", "smollm2-135m-1"]
    ports = [service["ports"] for service in services.values()]
    assert ports == [["127.0.0.1:9000:8000"], ["127.0.0.1:9001:8000"]]
    for service in services.values():
        assert (service["user"], service["read_only"]) == ("65532:65532", True)
        assert service["volumes"] == [
            {
                "type": "bind",
                "source": "/srv/models/my model",
                "target": "/models",
                "read_only": True,
            }
        ]
        assert service["healthcheck"]["start_period"] == "1200s"
        assert ":8001/ready" in service["healthcheck"]["test"][-1]
        assert "deploy" not in service


def test_replicas_have_devices_of_their_own(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    (service,) = made(plan, path, "vllm-one-node")["services"].values()
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices["device_ids"] == ["0", "1", "2", "3"]
    (service,) = made(plan, path, "amd")["services"].values()
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]


def test_a_file_is_of_one_host(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--image", "registry/engine", "--host-path", "/srv/models")
    assert main(["deploy", "compose", str(plan("vllm-two-nodes")), *words]) == 1
    assert "is on 2 hosts" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [HERE, "vllm-one-node", "vllm-one-device", "amd"])
def test_compose_takes_the_file(plan: Plan, tmp_path: Path, kind: str) -> None:
    tool = shutil.which("docker-compose")
    if tool is None:
        pytest.skip("no Compose to check with: apt-get install docker-compose")
    path = tmp_path / "compose.yaml"
    made(plan, path, kind)
    done = subprocess.run(
        [tool, "-f", str(path), "config"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["services"]
