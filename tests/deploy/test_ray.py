"""`penstock deploy ray`: RayClusters of KubeRay's with the server in the head's container."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main, parser
from tests.deploy.conftest import HERE
from tests.limits import HANG

Ray = Callable[..., dict[str, Any]]


@pytest.fixture
def ray(plan: Callable[[str], Path], tmp_path: Path) -> Ray:
    def write(kind: str, *words: str) -> dict[str, Any]:
        out = tmp_path / "manifests"
        asked = ["--image", "registry/engine:0", "-o", str(out), "--claim", "weights"]
        assert main(["deploy", "ray", str(plan(kind)), *asked, *words]) == 0
        return {path.name: yaml.safe_load(path.read_text()) for path in out.iterdir()}

    return write


def head(files: dict[str, Any]) -> dict[str, Any]:
    template = files["ray-cluster-0.yaml"]["spec"]["headGroupSpec"]["template"]
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def served(files: dict[str, Any]) -> list[str]:
    """Words of the server, as the head's shell sees them."""
    (script,) = head(files)["args"]
    return shlex.split(script.rpartition("exec ")[2])


def test_a_replica_is_a_cluster_of_its_own(ray: Ray) -> None:
    files = ray(HERE)
    clusters = [name for name in files if name.startswith("ray-cluster-")]
    names = [files[name]["metadata"]["name"] for name in sorted(clusters)]
    assert names == ["smollm2-135m-0", "smollm2-135m-1"]
    assert files["ray-cluster-0.yaml"]["spec"]["workerGroupSpecs"] == []
    assert not {"deployment.yaml", "leader-worker-set.yaml"} & set(files)


def test_the_head_waits_for_its_nodes_no_longer_than_a_start_takes(
    ray: Ray, plan: Callable[[str], Path], tmp_path: Path
) -> None:
    """The script itself, with a Ray that no node joins."""
    container = head(ray("vllm-two-nodes"))
    (script,) = container["args"]
    limit = re.search(r"-lt (\d+)", script)
    assert limit
    start = yaml.safe_load(plan("vllm-two-nodes").read_text())["start"]
    weights = start["weights"]["claim"]
    seconds = start["image"]["seconds"] + weights["pull_seconds"] + weights["seconds"]
    assert int(limit[1]) == 2 * seconds
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    done = subprocess.run(
        [*container["command"], script.replace(f"-lt {limit[1]}", "-lt 1")],
        env={"PATH": f"{programs}:/usr/bin:/bin", "KUBERAY_GEN_RAY_START_CMD": "sleep 5"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"fewer than 2 nodes of Ray after {limit[1]} s" in done.stderr


def test_the_server_has_the_ray_executor_and_no_nodes_of_its_own(ray: Ray) -> None:
    files = ray("penstock-two-nodes")
    words = served(files)
    assert parser().parse_args(words[3:]).model == "/models"
    assert {"--distributed-executor-backend=ray", "--ray-address=auto"} <= set(words)
    assert {"--tensor-parallel-size=8", "--pipeline-parallel-size=2"} <= set(words)
    assert not any("LWS" in word for word in served(files))
    assert "PENSTOCK_CLUSTER_TOKEN" not in {entry["name"] for entry in head(files)["env"]}
    vllm = served(ray("vllm-two-nodes"))
    assert "--distributed-executor-backend=ray" in vllm
    assert not any(word.startswith("--nnodes") for word in vllm)


def test_nodes_are_as_many_as_planned_with_the_ranks_of_a_pod(ray: Ray) -> None:
    spec = ray("penstock-two-nodes")["ray-cluster-0.yaml"]["spec"]
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 1)
    for part in (spec["headGroupSpec"], group):
        assert part["rayStartParams"]["num-cpus"] == "8"
        # KubeRay takes texts alone.
        assert all(isinstance(value, str) for value in part["rayStartParams"].values())
    (worker,) = group["template"]["spec"]["containers"]
    assert worker["args"] == ["ulimit -n 65536; exec $KUBERAY_GEN_RAY_START_CMD"]
    assert worker["livenessProbe"]["exec"]["command"] == ["ray", "health-check"]
    assert "ports" not in worker


def test_no_pod_reports_its_use(ray: Ray) -> None:
    spec = ray("vllm-two-nodes", "--kv-tier", "ram:8GiB")["ray-cluster-0.yaml"]["spec"]
    for part in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = part["template"]["spec"]["containers"]
        environ = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert environ["VLLM_NO_USAGE_STATS"] == "1"
        assert environ["LMCACHE_TRACK_USAGE"] == "false"


def test_heads_serve_and_nothing_else(ray: Ray) -> None:
    files = ray("penstock-two-nodes", "--pod-monitor")
    spec = files["ray-cluster-0.yaml"]["spec"]
    head_labels = spec["headGroupSpec"]["template"]["metadata"]["labels"]
    worker_labels = spec["workerGroupSpecs"][0]["template"]["metadata"]["labels"]
    for name, path in (
        ("service.yaml", ("selector",)),
        ("disruption-budget.yaml", ("selector", "matchLabels")),
        ("pod-monitor.yaml", ("selector", "matchLabels")),
    ):
        labels = files[name]["spec"]
        for key in path:
            labels = labels[key]
        assert labels.items() <= head_labels.items()
        assert not labels.items() <= worker_labels.items()
    rule = files["network-policy.yaml"]["spec"]["ingress"][0]
    own = rule["from"][0]["podSelector"]["matchLabels"]
    assert own.items() <= head_labels.items() & worker_labels.items()


def test_shared_memory_has_room_for_the_object_store(ray: Ray, plan: Any, tmp_path: Path) -> None:
    volumes = ray(HERE)["ray-cluster-0.yaml"]["spec"]["headGroupSpec"]["template"]["spec"]
    (shm,) = (each for each in volumes["volumes"] if each["name"] == "shm")
    store = int(head(ray(HERE))["resources"]["limits"]["memory"][:-2])
    assert shm["emptyDir"]["sizeLimit"] == f"{64 + 128}Mi"
    assert store == (15 << 10) + 1024 + 128


@pytest.mark.parametrize("ends", [True, False], ids=["ray-ends", "all-join"])
def test_the_heads_script_waits_for_all_nodes(ray: Ray, tmp_path: Path, ends: bool) -> None:
    """The script of the head runs in a shell, with programs that stand in for its own."""
    (script,) = head(ray("penstock-two-nodes"))["args"]
    asked, ended = tmp_path / "asked", tmp_path / "ended"
    stand_ins = {
        # All nodes are there at the third time.
        "python3": f'if [ "$1" = -c ]; then echo x >> {asked}; [ "$(wc -l < {asked})" -ge 3 ]; '
        f'else echo served "$@"; touch {ended}; fi',
        "sleep": "exec /bin/sleep 0.1",
        "ray-start": f"exec > /dev/null 2>&1; until [ -e {ended} ]; do /bin/sleep 0.1; done",
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    start = "false" if ends else "ray-start"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "KUBERAY_GEN_RAY_START_CMD": start}
    done = subprocess.run(
        ["/bin/bash", "-c", "--", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    if ends:
        assert done.returncode == 1
        assert "served" not in done.stdout
    else:
        assert done.stdout.startswith("served -m penstock serve /models ")
        assert len(asked.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("sglang-two-nodes", [], "no Ray executor"),
        ("penstock-stage-two-nodes", [], "Penstock's Ray executor keeps a stage on one node"),
        (HERE, ["--autoscale-to", "5"], "a RayCluster of its own"),
    ],
)
def test_what_ray_cannot_have(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    words: list[str],
    said: str,
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c", *words]
    assert main(["deploy", "ray", str(plan(kind)), *asked]) == 1
    assert said in capsys.readouterr().err


def test_the_linter_knows_its_pods(ray: Ray, tmp_path: Path) -> None:
    files = ray("penstock-two-nodes")
    assert main(["deploy", "lint", str(tmp_path / "manifests")]) == 0
    spec = files["ray-cluster-0.yaml"]["spec"]
    spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["volumeMounts"][0]["name"] = (
        "models"
    )
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(files["ray-cluster-0.yaml"]))
    assert main(["deploy", "lint", str(path)]) == 1
