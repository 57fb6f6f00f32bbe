"""KV tiers in Compose files, units and batch scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main, parser
from tests.deploy.conftest import HERE

TIERS = ("--kv-tier", "ram:4GiB", "--kv-tier", "disk:/srv/my kv,64GiB")
GIVEN = ["--kv-tier=ram:4GiB", "--kv-tier=disk:/srv/my kv,64GiB"]
IN_A_CACHE = ("--kv-tier", "disk:/var/cache/smollm2-135m/kv,64GiB")
MODEL = ("--model-path", "/srv/models/m")
ON_THE_HOST = ("--image", "registry/engine:0", "--host-path", "/srv/models")
Plan = Callable[[str], Path]


def made(plan: Path, target: str, *words: str) -> Path:
    path = plan.parent / f"made-{target}.service"
    place = ON_THE_HOST if target == "compose" else MODEL
    assert main(["deploy", target, str(plan), "-o", str(path), *place, *words]) == 0
    return path


def test_services_share_a_directory_of_the_host(plan: Plan) -> None:
    path = made(plan(HERE), "compose", *TIERS, "--kv-tier", "redis://cache:6379/0")
    services = yaml.safe_load(path.read_text())["services"]
    assert len(services) == 2
    for service in services.values():
        assert [word for word in service["entrypoint"] if "--kv-tier" in word] == [
            *GIVEN,
            "--kv-tier=redis://cache:6379/0",
        ]
        assert parser().parse_args(service["entrypoint"][3:])
        assert service["volumes"][1] == {
            "type": "bind",
            "source": "/srv/my kv",
            "target": "/srv/my kv",
        }
        assert service["mem_limit"] == f"{(15 + 4) << 10}m"
    assert "install -d -m 0700 -o 65532 -g 65532 '/srv/my kv'" in path.read_text()
    assert "install" not in made(plan(HERE), "compose").read_text()
    if (tool := shutil.which("docker-compose")) is None:
        pytest.skip("no Compose to check with: apt-get install docker-compose")
    made(plan(HERE), "compose", *TIERS)
    words = [tool, "-f", str(path), "config"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_unit_keeps_its_disk_in_its_cache(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    path = made(plan(HERE), "systemd", "--kv-tier", "ram:4GiB", *IN_A_CACHE)
    text = path.read_text()
    assert "--kv-tier=ram:4GiB --kv-tier=disk:/var/cache/smollm2-135m/kv,64GiB\n" in text
    assert "CacheDirectory=smollm2-135m\n" in text
    assert main(["deploy", "systemd", str(plan(HERE)), *MODEL, *TIERS]) == 1
    assert "give a directory of it, /var/cache/smollm2-135m/kv" in capsys.readouterr().err
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    program = str(Path(sys.executable).parent / "penstock")
    made(plan(HERE), "systemd", *IN_A_CACHE, "--program", program)
    done = subprocess.run(
        [verify, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_each_node_of_a_job_makes_its_directory(plan: Plan, tmp_path: Path) -> None:
    disk = tmp_path / "scratch/my kv"
    script = made(plan("penstock-two-nodes"), "slurm", "--kv-tier", f"disk:{disk},64GiB")
    assert "#SBATCH --mem=0\n" in script.read_text()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "srun": 'SLURM_NODEID=1 "${@:2}"',
        "scontrol": "echo first",
        "python3": 'printf "%s|" "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "first,second",
        "SLURM_NNODES": "2",
        "PENSTOCK_CLUSTER_TOKEN": "secret",
    }
    done = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert f"--kv-tier=disk:{disk},64GiB" in done.stdout.split("|")
    assert disk.stat().st_mode & 0o777 == 0o700


def test_tiers_of_the_plan_are_the_default(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(plan(HERE).read_text())
    document["choice"]["tiers"] = [{"kind": "ram", "bytes": 8 << 30}]
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    for target in ("compose", "systemd", "slurm"):
        assert "--kv-tier=ram:8192MiB" in made(path, target).read_text()
    document["choice"]["tiers"].append({"kind": "disk", "bytes": 1 << 36})
    path.write_text(yaml.safe_dump(document))
    assert "--kv-tier=disk:/var/kv,65536MiB" in made(path, "compose").read_text()
    planned = made(path, "systemd").read_text()
    assert "--kv-tier=disk:/var/cache/smollm2-135m/kv,65536MiB" in planned
    assert main(["deploy", "slurm", str(path), *MODEL]) == 1
    assert "--kv-tier disk:PATH,65536MiB" in capsys.readouterr().err


def test_the_tiers_of_vllm_are_in_its_environment(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """LMCache's sizes are GiB for each rank; a unit or batch script has no such environment."""
    tier = ("--kv-tier", "ram:8GiB")
    path = made(plan("vllm-one-node"), "compose", *tier)
    (service,) = yaml.safe_load(path.read_text())["services"].values()
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE=2" in service["environment"]
    assert any(word.startswith("--kv-transfer-config=") for word in service["entrypoint"])
    for target in ("systemd", "slurm"):
        assert main(["deploy", target, str(plan("vllm-one-node")), *MODEL, *tier]) == 1
        assert "for pods and Compose" in capsys.readouterr().err
