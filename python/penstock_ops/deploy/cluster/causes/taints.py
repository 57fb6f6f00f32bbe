"""Taints of nodes, and tolerations of pods."""

from __future__ import annotations

from penstock_ops.deploy.cluster.snapshot import Object
from penstock_ops.deploy.objects import mapping, mappings

TROUBLES = {
    "node.kubernetes.io/not-ready": "is not ready",
    "node.kubernetes.io/unreachable": "does not answer",
    "node.kubernetes.io/disk-pressure": "has a full disk",
    "node.kubernetes.io/memory-pressure": "is short of memory",
    "node.kubernetes.io/pid-pressure": "is short of process ids",
    "node.kubernetes.io/unschedulable": "is cordoned",
}
"""Taints that Kubernetes itself sets on a node with a fault, each with the fault in words."""


def refusals(spec: Object, node: Object) -> list[Object]:
    """Taints of a node that the pod does not tolerate."""
    taints = mappings(mapping(node.get("spec")).get("taints"))
    return [
        taint
        for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and not any(_tolerates(one, taint) for one in mappings(spec.get("tolerations")))
    ]


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same = toleration.get("key") == taint.get("key")
    return bool(same and toleration.get("value", "") == taint.get("value", ""))


def trouble(spec: Object, node: Object) -> str:
    """The fault of a node in words, from a taint that Kubernetes set; empty if only people set
    taints.
    """
    words = (TROUBLES.get(str(taint.get("key")), "") for taint in refusals(spec, node))
    return next(filter(None, words), "")


def shown_taint(taint: Object) -> str:
    """A taint in the format of `kubectl taint`, without its effect."""
    value = taint.get("value")
    return f"{taint.get('key')}={value}" if value else str(taint.get("key"))
