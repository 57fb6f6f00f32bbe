"""Units of systemd and scripts of Slurm, checked by the tools that read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main
from penstock.core import PenstockError
from penstock_ops.deploy.hosts import local_command
from penstock_ops.deploy.settings import Settings
from penstock_ops.deploy.volumes import Volume
from tests.deploy.conftest import HERE, PLANS

MODEL = ["--model-path", "/srv/models/my model"]
Plan = Callable[[str], Path]


def made(plan: Plan, tmp_path: Path, target: str, kind: str, *words: str) -> Path:
    path = tmp_path / f"made.{'service' if target == 'systemd' else 'sh'}"
    assert main(["deploy", target, str(plan(kind)), "-o", str(path), *MODEL, *words]) == 0
    return path


@pytest.mark.parametrize("kind", [HERE, "vllm-one-node"])
def test_a_unit_is_valid(plan: Plan, tmp_path: Path, kind: str) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    program = str(Path(sys.executable).parent / "penstock")
    unit = made(plan, tmp_path, "systemd", kind, "--program", program)
    done = subprocess.run(
        [verify, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_unit_has_the_choice_of_its_plan(plan: Plan, tmp_path: Path) -> None:
    text = made(plan, tmp_path, "systemd", HERE).read_text()
    (start,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert start.startswith("ExecStart=/opt/penstock/bin/penstock serve ")
    assert '"/srv/models/my model"' in start
    assert f"--kv-cache-memory-bytes={4 << 30}" in start
    assert "Type=notify" in text
    assert "TimeoutStartSec=1200" in text


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("vllm", "/opt/vllm/bin/vllm serve "),
        ("sglang", "/opt/sglang/bin/python3 -m sglang.launch_server "),
    ],
)
def test_another_engine_starts_by_its_whole_path_and_sends_no_statistics(
    plan: Plan, tmp_path: Path, engine: str, command: str
) -> None:
    """Such an engine does not notify systemd, so a time limit of its start would have no effect."""
    path = tmp_path / "plan.yaml"
    path.write_text(
        yaml.safe_dump(yaml.safe_load(plan("vllm-one-node").read_text()) | {"engine": engine})
    )
    lines = made(lambda _: path, tmp_path, "systemd", engine).read_text().splitlines()
    assert any(line.startswith(f"ExecStart={command}") for line in lines)
    assert "Type=exec" in lines
    assert not any(line.startswith("TimeoutStartSec") for line in lines)
    assert ("Environment=VLLM_NO_USAGE_STATS=1" in lines) == (engine == "vllm")
    script = made(lambda _: path, tmp_path, "slurm", engine).read_text()
    assert ("export VLLM_NO_USAGE_STATS=1\n" in script) == (engine == "vllm")


def test_a_unit_is_of_one_host(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["deploy", "systemd", str(plan("vllm-two-nodes")), *MODEL]
    assert main(words) == 1
    assert "is on 2 hosts" in capsys.readouterr().err


SRUN = """#!/bin/bash
for id in $(seq 0 $((SLURM_NNODES - 1))); do SLURM_NODEID=$id "${@:2}"; done
"""


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_a_script_starts_every_node_with_its_own_command(
    plan: Plan, tmp_path: Path, kind: str
) -> None:
    """With commands of Slurm that only call what they are given, and programs that print."""
    script = made(plan, tmp_path, "slurm", kind)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho first\necho second\n",
        **dict.fromkeys(("python3", "vllm"), '#!/bin/bash\nprintf "%s|" "$@"; echo\n'),
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    nodes = 2 if "two-nodes" in kind or "by-requests" in kind else 1
    done = subprocess.run(
        ["bash", str(script)],
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "first,second",
            "SLURM_NNODES": str(nodes),
            "PENSTOCK_CLUSTER_TOKEN": "secret",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split("|")[:-1] for line in done.stdout.splitlines()]
    assert len(lines) == nodes
    assert all(any("/srv/models/my model" in word for word in line) for line in lines)
    if nodes == 2:
        joined = [" ".join(line) for line in lines]
        assert all("first" in line for line in joined)
        assert "--node-rank=0" in joined[0]
        assert "--node-rank=1" in joined[1]
        assert ("--headless" in joined[1]) == kind.startswith("vllm")


def test_a_job_of_several_penstock_nodes_needs_a_secret(plan: Plan, tmp_path: Path) -> None:
    script = made(plan, tmp_path, "slurm", "penstock-two-nodes")
    assert "PENSTOCK_CLUSTER_TOKEN:?" in script.read_text()
    assert "#SBATCH --gpus-per-node=8" in script.read_text()
    assert "TOKEN" not in made(plan, tmp_path, "slurm", "vllm-two-nodes").read_text()


def test_a_path_must_be_absolute(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "slurm", str(plan(HERE)), "--model-path", "models/m"]) == 2
    assert "an absolute path" in capsys.readouterr().err


def test_a_local_command_is_that_of_a_job_on_loopback(plan: Plan, tmp_path: Path) -> None:
    one = yaml.safe_load(plan(HERE).read_text())
    one["choice"]["replicas"] = 1
    settings = Settings(one, "m", "", Volume(), MODEL[1])
    words = local_command(settings, 1234, 1235)
    script = made(plan, tmp_path, "slurm", HERE).read_text()
    assert words[:5] == [sys.executable, "-P", "-m", "penstock", "serve"]
    own = {"--host=127.0.0.1", "--port=1234", "--metrics-port=1235"}
    assert own <= set(words)
    others = [word for word in words[6:] if word not in own]
    assert len(others) > 5
    assert all(word in script for word in others)


@pytest.mark.parametrize(("replicas", "per_node"), [(2, 1), (1, 1)])
def test_a_local_command_is_of_one_replica_on_one_host(
    plan: Plan, replicas: int, per_node: int
) -> None:
    changed = yaml.safe_load(plan("vllm-two-nodes").read_text())
    changed["choice"]["replicas"] = replicas
    changed["target"]["per_node"] = per_node
    with pytest.raises(PenstockError, match="one on one host is started here"):
        local_command(Settings(changed, "m", "", Volume(), "/m"), 1234, 1234)


def test_a_local_command_of_another_engine_listens_on_loopback(plan: Plan) -> None:
    changed = yaml.safe_load(plan("vllm-one-node").read_text())
    changed["choice"]["replicas"] = 1
    words = local_command(Settings(changed, "m", "", Volume(), "/m"), 1234, 1234)
    assert words[:3] == ["vllm", "serve", "/m"]
    assert [word for word in words if word.startswith(("--host", "--port"))] == [
        "--host=127.0.0.1",
        "--port=1234",
    ]
