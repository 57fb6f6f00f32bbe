"""Faults of GPU nodes and of pods on them, each named first by `penstock deploy status`. Nodes are
pretended; what scheduler and controllers make of their faults is real.
"""

from __future__ import annotations

import re

import pytest

from penstock_ops.deploy.kinds.nic_cluster_policy import SHARES
from tests.deploy.cluster.gpus import NAME, OnGpus
from tests.deploy.cluster.pretended import DEVICES, LOG, PRODUCT
from tests.deploy.cluster.stages import CRASHING, MISSING, PRIVATE

ADAPTER = "rdma/rdma_shared_devices_d"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_devices_that_other_pods_have(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices", replicas=2)
    on_gpus.add_nodes(1)
    on_gpus.run("apply", "--no-wait")
    found = on_gpus.cause(
        f"{DEVICES} is short by 8: it needs 8, and gpu-1 has 0 free of 8",
        f"Deployment {NAME}: 1 of 2 ready",
    )
    assert f"2 Insufficient {DEVICES}" in found.partition("scheduler: ")[2]


def test_a_node_that_is_used_in_part(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices")
    on_gpus.add_nodes(2)
    for number, devices in ((1, 6), (2, 2)):
        on_gpus.occupy(f"gpu-{number}", devices)
    on_gpus.run("apply", "--no-wait")
    on_gpus.cause(f"{DEVICES} is short by 2: it needs 8, and gpu-2 has 6 free of 8")


def test_devices_that_are_not_healthy(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices")
    on_gpus.add_nodes(1)
    on_gpus.nodes.allocatable("gpu-1", DEVICES, "7")
    on_gpus.run("apply", "--no-wait")
    found = on_gpus.cause(f"{DEVICES} is short by 1: it needs 8, and gpu-1 has 7 free of 7")
    assert "gpu-1 has 8, of which the device plugin offers 7" in found


def test_a_cluster_without_devices(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices")
    on_gpus.add_nodes(0)
    on_gpus.run("apply", "--no-wait")
    found = on_gpus.cause(f"needs 8 {DEVICES}, and no node has any")
    assert "device plugin" in found


def test_a_group_of_which_one_node_lacks_an_adapter(on_gpus: OnGpus) -> None:
    on_gpus.write("penstock-two-nodes")
    on_gpus.add_nodes(2)
    on_gpus.token()
    on_gpus.nodes.allocatable("gpu-2", ADAPTER, "0")
    on_gpus.run("apply", "--no-wait")
    found = on_gpus.cause(f"{ADAPTER} is short by 1: it needs 1, and gpu-2 has 0 free of 0")
    assert f"pod {NAME}-0-1" in found
    assert f"gpu-2 has {SHARES}, of which the device plugin offers 0" in found
    assert on_gpus.places() == {f"{NAME}-0": "gpu-1"}


def test_half_a_group_too_many(on_gpus: OnGpus) -> None:
    on_gpus.write("penstock-two-nodes", replicas=2)
    on_gpus.add_nodes(3)
    on_gpus.token()
    on_gpus.run("apply", "--no-wait")
    on_gpus.cause(
        f"{DEVICES} is short by 8: it needs 8, and gpu-1 has 0 free of 8",
        f"LeaderWorkerSet {NAME}: 1 of 2 groups ready",
    )


def test_a_taint_that_is_not_tolerated(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices")
    on_gpus.add_nodes(2, {"team": "research"})
    on_gpus.run("apply", "--no-wait")
    on_gpus.cause("taints keep it off all nodes that could hold it: team=research (gpu-1, gpu-2)")


def test_room_behind_a_taint(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices", replicas=2)
    on_gpus.add_nodes(1)
    on_gpus.nodes.gpu_node("gpu-2", on_gpus.target, {"team": "research"})
    on_gpus.run("apply", "--no-wait")
    found = on_gpus.cause(f"{DEVICES} is short by 8: it needs 8, and gpu-1 has 0 free of 8")
    assert "room behind taints: team=research (gpu-2)" in found


def test_a_node_that_is_cordoned(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices", replicas=2)
    on_gpus.add_nodes(2)
    on_gpus.nodes.change_node("gpu-2", spec={"unschedulable": True})
    on_gpus.run("apply", "--no-wait")
    on_gpus.cause("node gpu-2: is cordoned")


def test_labels_that_no_node_has(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices", "--node-selector", "nvidia.com/gpu.product=NVIDIA-H200")
    on_gpus.add_nodes(1)
    on_gpus.run("apply", "--no-wait")
    on_gpus.cause(f"no node has the label nvidia.com/gpu.product=NVIDIA-H200 (there are {PRODUCT})")


def test_a_replica_s_node_that_is_silent(on_gpus: OnGpus) -> None:
    """Its pods are driven off, and no other node has room: the first cause stays the node."""
    on_gpus.write("vllm-eight-devices", replicas=2)
    on_gpus.add_nodes(2)
    assert on_gpus.apply() == 0
    with on_gpus.nodes.silent("gpu-1"):
        on_gpus.cause("node gpu-1: is not ready for")
        on_gpus.wait_for_eviction("gpu-1")
        found = on_gpus.cause("node gpu-1: is not ready for")
        assert f"Deployment {NAME}: 1 of 2 ready" in found
        assert "kubelet: Kubelet stopped posting node status." in found
    assert on_gpus.apply() == 0


def test_a_node_of_a_group_that_is_silent(on_gpus: OnGpus) -> None:
    on_gpus.write("penstock-two-nodes")
    on_gpus.add_nodes(2)
    on_gpus.token()
    assert on_gpus.apply() == 0
    place = on_gpus.places()[f"{NAME}-0-1"]
    with on_gpus.nodes.silent(place):
        on_gpus.cause(f"node {place}: is not ready for")
        on_gpus.wait_for_eviction(place)
        on_gpus.cause(f"node {place}: is not ready for")
    assert on_gpus.apply() == 0


def test_a_node_that_is_gone(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-eight-devices", replicas=2)
    on_gpus.add_nodes(2)
    assert on_gpus.apply() == 0
    on_gpus.nodes.remove("gpu-1")
    found = on_gpus.cause(f"{DEVICES} is short by 8: it needs 8, and gpu-2 has 0 free of 8")
    assert "1 of 2 ready" in found
    on_gpus.nodes.gpu_node("gpu-3", on_gpus.target)
    assert on_gpus.apply() == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [(MISSING, "does not exist"), (PRIVATE, "may not be pulled: no permission")],
)
def test_an_image_that_cannot_be_pulled(on_gpus: OnGpus, name: str, words: str) -> None:
    image = f"registry.example/{name}:1"
    on_gpus.write("penstock-two-nodes", image=image)
    on_gpus.add_nodes(2)
    on_gpus.token()
    assert on_gpus.run("apply", "--timeout", "60") == 1
    on_gpus.cause(f"pod {NAME}-0: image {image} {words}")


def test_a_container_that_crashes(on_gpus: OnGpus, capsys: pytest.CaptureFixture[str]) -> None:
    on_gpus.write("vllm-eight-devices", image=f"registry.example/{CRASHING}:1")
    on_gpus.add_nodes(1)
    assert on_gpus.run("apply") == 1
    said = capsys.readouterr().out
    assert re.search(
        "^cause: .*container engine ended with exit status 1, [0-9]+ restarts$", said, re.M
    )
    assert "not ready within" not in said
    assert f"  log: {LOG[-1]}" in said
