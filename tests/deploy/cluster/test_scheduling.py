"""Pods that no node takes, and quantities."""

from __future__ import annotations

from fractions import Fraction

import pytest

from penstock_ops.deploy.cluster.causes import Stage
from penstock_ops.deploy.cluster.quantity import quantity, shown
from tests.deploy.cluster.made import GIB, asking, first, node, pod, unscheduled


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500m", Fraction(1, 2)), ("16Gi", 16 * GIB), ("1e3", 1000), ("2k", 2000), ("0", 0), ("x", 0)],
)
def test_quantities(text: str, expected: Fraction) -> None:
    assert quantity(text) == expected


def test_amounts_as_people_write_them() -> None:
    assert shown("memory", Fraction(3 * GIB, 2)) == "1.5 GiB"
    assert shown("nvidia.com/gpu", Fraction(8)) == "8"
    assert shown("cpu", Fraction(1, 2)) == "0.5"


def test_what_is_short_on_the_node_with_most_room() -> None:
    small = node("small")
    small["status"]["allocatable"] = {"memory": "4Gi", "pods": "10"}
    taken = pod("other", spec={"containers": asking(memory="6Gi")}, status={"phase": "Running"})
    gone = pod("gone", spec={"containers": asking(memory="6Gi")}, status={"phase": "Failed"})
    found = first(
        unscheduled(
            "0/2 nodes are available: 2 Insufficient memory.", containers=asking(memory="12Gi")
        ),
        nodes=[small, node()],
        all_pods=[taken, gone],
    )
    assert found.stage is Stage.SCHEDULING
    assert found.summary == (
        "memory is short by 2.0 GiB: it needs 12.0 GiB, and n1 has 10.0 GiB free of 16.0 GiB"
    )
    assert found.details == ("scheduler: 0/2 nodes are available: 2 Insufficient memory.",)
    assert not found.lasting


def test_devices_that_no_node_has() -> None:
    found = first(unscheduled("...", containers=asking(gpu="8", memory="1Gi")))
    assert found.summary == "needs 8 nvidia.com/gpu, and no node has any"


def test_sidecars_and_containers_that_run_before_count_as_the_scheduler_counts_them() -> None:
    before = [
        {**asking(memory="2Gi")[0], "restartPolicy": "Always"},
        asking(memory="15Gi")[0],
    ]
    found = first(unscheduled("...", containers=asking(memory="1Gi"), initContainers=before))
    assert "it needs 17.0 GiB" in found.summary


def test_labels_that_no_node_has() -> None:
    h100 = node()
    h100["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    selector = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    found = first(unscheduled("...", nodeSelector=selector), nodes=[h100])
    assert found.summary == (
        "no node has the label nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3 (there are NVIDIA-L40S)"
    )


@pytest.mark.parametrize(
    ("taint", "subject", "summary"),
    [
        ("node.kubernetes.io/disk-pressure", "node n1", "has a full disk"),
        ("node.kubernetes.io/unreachable", "node n1", "does not answer"),
        ("team", "pod tiny-a", "taints keep it off all nodes that could hold it: team (n1)"),
    ],
)
def test_taints(taint: str, subject: str, summary: str) -> None:
    tainted = node(spec={"taints": [{"key": taint, "effect": "NoSchedule"}]})
    found = first(unscheduled("..."), nodes=[tainted])
    assert (found.subject, found.summary) == (subject, summary)


def test_a_tolerated_taint_is_none() -> None:
    tainted = node(spec={"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]})
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    waits = unscheduled("...", tolerations=tolerations, containers=asking(gpu="1"))
    assert first(waits, nodes=[tainted]).summary == "needs 1 nvidia.com/gpu, and no node has any"


def test_without_leave_to_read_nodes_the_scheduler_s_words_remain() -> None:
    found = first(unscheduled("0/3 nodes are available"), nodes=None, all_pods=None)
    assert found.details == ("scheduler: 0/3 nodes are available",)


def test_a_claim_that_does_not_exist() -> None:
    found = first(unscheduled('0/1 nodes: persistentvolumeclaim "weights" not found.'))
    assert (found.stage, found.summary) == (Stage.CLAIM, "the claim weights does not exist")
