"""What RDMA needs besides pods: NicClusterPolicy, and NCCL's topology of virtual machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from tests.deploy.conftest import HERE, Written
from tests.deploy.topology.trees import PAIR, PRINTED

INTERFACES = "ibs65,ibs67,ibs69,ibs71,ibs73,ibs75,ibs77,ibs79"


def test_each_resource_that_pods_request_has_an_interface(written: Written) -> None:
    files = written("sglang-two-nodes", "--nic-interfaces", INTERFACES)
    policy = files["nic-cluster-policy.yaml"]
    # The kind is the cluster's: a namespace would be refused.
    assert "namespace" not in policy["metadata"]
    config = json.loads(policy["spec"]["rdmaSharedDevicePlugin"]["config"])["configList"]
    template = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    requested = [name for name in limits if name.startswith("rdma/")]
    assert [f"rdma/{each['resourceName']}" for each in config] == requested
    assert [each["selectors"]["ifNames"] for each in config] == [
        [name] for name in INTERFACES.split(",")
    ]


@pytest.mark.parametrize(
    ("kind", "interfaces"), [("sglang-two-nodes", "ibs65"), (HERE, "ibs65"), ("amd", INTERFACES)]
)
def test_interfaces_that_are_not_those_of_the_plan(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    interfaces: str,
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c"]
    words = [*asked, "--nic-interfaces", interfaces]
    assert main(["deploy", "k8s", str(plan(kind)), *words]) == 1
    assert "--nic-interfaces names one for each" in capsys.readouterr().err


def test_a_topology_file_is_mounted_where_nccl_is_told(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "vm.xml"
    path.write_text(PAIR)
    files = written("sglang-two-nodes", "--topology-file", str(path))
    kept = files["topology.yaml"]
    assert kept["data"] == {"topology.xml": path.read_text()}
    templates = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        spec = templates[part]["spec"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert volumes["topology"]["configMap"]["name"] == kept["metadata"]["name"]
        (container,) = spec["containers"]
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "topology")
        value = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert value["NCCL_TOPO_FILE"] == f"{mount['mountPath']}/topology.xml"


def test_a_topology_file_that_is_not_there(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c"]
    words = [*asked, "--topology-file", str(tmp_path / "none.xml")]
    assert main(["deploy", "k8s", str(plan(HERE)), *words]) == 1
    assert "none.xml" in capsys.readouterr().err


def test_a_topology_file_that_nccl_does_not_read(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c"]
    asked = ["deploy", "k8s", str(plan("sglang-two-nodes")), *words, "--topology-file"]
    assert main([*asked, str(PRINTED)]) == 1
    assert "000004:03.0" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()
    path = tmp_path / "vm.xml"
    path.write_text(PAIR)
    assert main([*asked, str(path)]) == 0
    # The plan's nodes have eight of each.
    assert "warning: 1 GPUs; the node type has 8" in capsys.readouterr().err
