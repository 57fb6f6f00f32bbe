"""The Job of `penstock deploy verify`: its objects, checked by `penstock deploy lint`, and its
command, which `penstock verify` must accept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.verify import command

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of two nodes with two ranks each."""
    content = yaml.safe_load((REPOSITORY / "deploy/helm/plan.yaml").read_text())
    content["choice"] |= {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    content["target"] |= {
        "per_node": 2,
        "resource": "nvidia.com/gpu",
        "accelerator": "h100-sxm-80gb",
        "fabric_resources": {"rdma/hca": 2},
    }
    content["engine"] = "vllm"
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_one_pod_on_each_node_without_ssh_or_privileges(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "out"
    words = [str(plan), "-o", str(directory), "--image", "registry/penstock:1"]
    assert main(["deploy", "verify", *words, "--name", "m", "--claim", "w"]) == 0
    assert "create secret generic m-verify" in capsys.readouterr().out

    job = yaml.safe_load((directory / "verify-job.yaml").read_text())
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert job["spec"]["completionMode"] == "Indexed"
    pod = job["spec"]["template"]["spec"]
    [apart] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == job["spec"]["template"]["metadata"]["labels"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "rdma/hca": "2"}
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert not security.get("privileged")
    assert not pod.get("hostNetwork")

    service = yaml.safe_load((directory / "verify-service.yaml").read_text())
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"]
    config = yaml.safe_load((directory / "verify-plan.yaml").read_text())
    assert yaml.safe_load(config["data"]["plan.yaml"]) == yaml.safe_load(plan.read_text())

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    line = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["command"]]
    parsed = parser.parse_args(line[2:])
    assert (parsed.nnodes, parsed.node_rank, parsed.hosts) == (2, 1, [])
    assert parsed.master_addr == "m-verify-0.m-verify:29501"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(Path(parsed.cluster_token_file).parent), str(parsed.plan.parent)} <= mounts
    assert str(parsed.weights) in mounts

    assert main(["deploy", "lint", str(directory)]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--image", "https://registry/x"], "--image"),
        (["--image", "x", "--node-selector", "gpu"], "--node-selector"),
    ],
)
def test_wrong_flags_are_named(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["deploy", "verify", str(plan), "-o", str(tmp_path / "o"), *words]) != 0
    assert text in capsys.readouterr().err
