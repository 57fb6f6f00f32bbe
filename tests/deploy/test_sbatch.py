"""Batch scripts as Slurm's own sbatch and controller take them, without a job that runs."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.config.machine import free_port
from tests.deploy.conftest import HERE, PLANS
from tests.deploy.test_names import NAMES
from tests.deploy.test_names import made as named
from tests.e2e.server import eventually
from tests.limits import HANG

TOOLS = ("slurmctld", "sbatch", "sinfo")
NODES = 2
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
# Nodes that could be started: the controller plans jobs for them, and needs no daemon there.
NodeName=gpu[0-1] CPUs=64 RealMemory=2000000 Gres=gpu:8 State=CLOUD
SuspendProgram=/bin/true
ResumeProgram=/bin/true
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
Plan = Callable[[str], Path]
Submit = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def submit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submit]:
    """`submit(script)`: what `sbatch --test-only` says, of a cluster with two nodes of eight."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no Slurm: {', '.join(missing)} missing (apt-get install slurmctld)")
    folder = tmp_path_factory.mktemp("slurm")
    config = folder / "slurm.conf"
    values = {"folder": folder, "port": free_port(), "user": getpass.getuser()}
    config.write_text(CONFIGURATION.format(**values))
    env = {**os.environ, "SLURM_CONF": str(config)}

    def call(*words: str, script: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, input=script, env=env, capture_output=True, text=True, timeout=HANG, check=False
        )

    with (folder / "log").open("wb") as log:
        controller = subprocess.Popen(["slurmctld", "-D", "-c"], env=env, stdout=log, stderr=log)
        try:
            eventually(lambda: call("sinfo").returncode == 0, "the controller")
            yield lambda script: call("sbatch", "--test-only", script=script)
        finally:
            controller.kill()
            controller.wait(HANG)


def made(plan: Plan, tmp_path: Path, kind: str) -> str:
    path = tmp_path / "replica.sh"
    words = ("--model-path", "/srv/models/m", "-o", str(path))
    assert main(["deploy", "slurm", str(plan(kind)), *words]) == 0
    return path.read_text()


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_a_script_gets_the_nodes_of_its_plan(
    submit: Submit, plan: Plan, tmp_path: Path, kind: str
) -> None:
    done = submit(made(plan, tmp_path, kind))
    assert done.returncode == 0, done.stderr
    found = re.search(r"using \d+ processors on nodes (\S+) in partition all", done.stderr)
    assert found is not None, done.stderr
    several = "two-nodes" in kind or "by-requests" in kind
    assert (found[1] == "gpu[0-1]") == several, found[0]


def test_hostile_names_are_no_options(submit: Submit, tmp_path: Path) -> None:
    """Slurm reads the head of the script as it does with a name that is none of them."""
    for name in NAMES:
        done = submit(named(tmp_path, "slurm", name))
        assert done.returncode == 0, (name, done.stderr)
        assert "on nodes gpu0 in partition all" in done.stderr, (name, done.stderr)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--nodes=2", f"--nodes={NODES + 1}", "Requested node configuration is not available"),
        ("per-node=8", "per-node=9", "Requested node configuration is not available"),
        ("--exclusive", "--exclusively", "unrecognized option"),
        ("--signal=TERM@", "--signal=NONE@", "Invalid --signal"),
    ],
)
def test_what_is_wrong_is_refused(
    submit: Submit, plan: Plan, tmp_path: Path, old: str, new: str, said: str
) -> None:
    """So the rows above say something: the same script with one word changed."""
    script = made(plan, tmp_path, "penstock-two-nodes")
    assert old in script
    done = submit(script.replace(old, new))
    assert done.returncode != 0
    assert said in done.stderr
