"""Pods for devices that no node takes, in clusters of several kinds of nodes."""

from __future__ import annotations

from typing import Any

from penstock_ops.deploy.cluster.causes import Stage, causes
from tests.deploy.cluster.made import (
    asking,
    at,
    container,
    first,
    node,
    pod,
    snapshot,
    unscheduled,
    workload,
)

GPU = "nvidia.com/gpu"
ADAPTER = "rdma/rdma_shared_devices_a"


def gpu_node(
    name: str, *taints: str, ready: str = "True", capacity: int = 8, **offered: str
) -> dict[str, Any]:
    made = node(name, spec={"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]})
    amounts = {GPU: offered.get("gpu", str(capacity)), ADAPTER: offered.get("adapter", "63")}
    made["status"]["allocatable"] |= amounts
    made["status"]["capacity"] = {GPU: str(capacity)}
    made["status"]["conditions"] = [
        {"type": "Ready", "status": ready, "lastTransitionTime": at(30), "message": "no news"}
    ]
    return made


def holding(name: str, where: str, devices: str = "8", **metadata: str) -> dict[str, Any]:
    found = pod(name, spec={"containers": asking(gpu=devices), "nodeName": where})
    found["status"] = {"phase": "Running"}
    found["metadata"] |= metadata
    return found


WAITS = unscheduled("0/n nodes are available", containers=asking(gpu="8"))


def test_devices_are_short_where_there_are_some_and_not_on_other_nodes() -> None:
    nodes = [node("cpu"), gpu_node("full"), gpu_node("half")]
    taken = [holding("a", "full"), holding("b", "half", "4")]
    found = first(WAITS, nodes=nodes, all_pods=taken)
    assert found.summary == f"{GPU} is short by 4: it needs 8, and half has 4 free of 8"
    taken = [holding("a", "full"), holding("b", "half")]
    found = first(WAITS, nodes=nodes, all_pods=taken)
    assert found.summary == f"{GPU} is short by 8: it needs 8, and full has 0 free of 8"


def test_an_adapter_that_is_missing_beside_free_devices() -> None:
    amounts = {GPU: "8", ADAPTER: "1"}
    waits = unscheduled("...", containers=[container(resources={"limits": amounts})])
    nodes = [node("cpu"), gpu_node("full"), gpu_node("odd", adapter="0")]
    found = first(waits, nodes=nodes, all_pods=[holding("a", "full")])
    assert found.summary == f"needs 1 {ADAPTER}, and odd has none"
    found = first(waits, nodes=[node("cpu")])
    assert found.summary == f"needs 8 {GPU}, and no node has any"
    assert found.details[0] == f"also short on cpu: {ADAPTER}"


def test_devices_that_the_plugin_does_not_offer() -> None:
    found = first(WAITS, nodes=[node("cpu"), gpu_node("n1", gpu="7")])
    assert found.summary == f"{GPU} is short by 1: it needs 8, and n1 has 7 free of 7"
    assert found.details[0] == "n1 has 8, of which the device plugin offers 7"
    found = first(WAITS, nodes=[gpu_node("n1", gpu="0")])
    assert found.summary == f"{GPU} is short by 8: it needs 8, and n1 has 0 free of 0"


def test_taints_of_the_nodes_with_devices_are_the_cause() -> None:
    found = first(WAITS, nodes=[node("cpu"), gpu_node("n1", "team"), gpu_node("n2", "team")])
    assert found.stage is Stage.SCHEDULING
    assert found.summary == "taints keep it off all nodes that could hold it: team (n1, n2)"


def test_room_behind_a_taint_is_evidence_where_other_nodes_are_full() -> None:
    nodes = [gpu_node("n1"), gpu_node("n2", "team"), gpu_node("n3", "team")]
    found = first(WAITS, nodes=nodes, all_pods=[holding("a", "n1"), holding("b", "n2")])
    assert found.summary == f"{GPU} is short by 8: it needs 8, and n1 has 0 free of 8"
    assert found.details[0] == "room behind taints: team (n3)"


def test_a_node_in_trouble_that_would_have_room_comes_before_full_ones() -> None:
    nodes = [gpu_node("n1"), gpu_node("n2", "node.kubernetes.io/unschedulable")]
    found = first(WAITS, nodes=nodes, all_pods=[holding("a", "n1")])
    assert (found.stage, found.subject, found.summary) == (Stage.NODE, "node n2", "is cordoned")
    found = first(WAITS, nodes=nodes, all_pods=[holding("a", "n1"), holding("b", "n2")])
    assert found.summary == f"{GPU} is short by 8: it needs 8, and n1 has 0 free of 8"


def test_a_silent_node_whose_pod_is_to_end_has_room() -> None:
    silent = gpu_node("n2", "node.kubernetes.io/unreachable", ready="Unknown")
    ending = holding("old", "n2", deletionTimestamp=at(3))
    found = first(WAITS, nodes=[gpu_node("n1"), silent], all_pods=[holding("a", "n1"), ending])
    assert (found.subject, found.summary) == ("node n2", "is not ready for 30 s")
    assert found.details == ("kubelet: no news", "scheduler: 0/n nodes are available")


def test_a_pod_that_cannot_end_on_a_silent_node_names_the_node() -> None:
    silent = gpu_node("n2", "node.kubernetes.io/unreachable", ready="Unknown")
    ending = holding("tiny-a", "n2", deletionTimestamp=at(3))
    assert causes(snapshot(workload(ending), nodes=[gpu_node("n2")])) == []
    (found,) = causes(snapshot(workload(ending), nodes=[silent]))
    assert (found.subject, found.summary) == ("node n2", "is not ready for 30 s")
