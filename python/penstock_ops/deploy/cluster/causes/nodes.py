"""Failed nodes, whose pods do not serve, and pods evicted from a node."""

from __future__ import annotations

from penstock_ops.deploy.cluster.causes.cause import Cause, Stage
from penstock_ops.deploy.cluster.readiness import condition
from penstock_ops.deploy.cluster.snapshot import Object, Snapshot
from penstock_ops.deploy.objects import mapping

PRESSURES = {"DiskPressure": "has a full disk", "MemoryPressure": "is short of memory"}
FREE_DISK = "free space on it (images, logs, emptyDir volumes), or give it a larger disk"


def lost_node(pod: Object, snapshot: Snapshot) -> Cause | None:
    """The cause if a pod's node is no longer in the cluster or is not ready."""
    name = mapping(pod.get("spec")).get("nodeName")
    node = snapshot.node(str(name)) if name else None
    if node is None:
        if name and snapshot.nodes:
            gone = "is not in the cluster any more, and has pods there"
            return Cause(Stage.NODE, f"node {name}", gone, lasting=False)
        return None
    return not_ready(node, snapshot)


def not_ready(node: Object, snapshot: Snapshot) -> Cause | None:
    """The cause if a node is not ready: for how long, and the reported message; None if it is
    ready.
    """
    ready = condition(node, "Ready")
    if ready.get("status") == "True":
        return None
    age = snapshot.age(ready.get("lastTransitionTime"))
    since = "" if age is None else f" for {age:.0f} s"
    said = str(ready.get("message") or "")
    return Cause(
        Stage.NODE,
        f"node {node['metadata']['name']}",
        f"is not ready{since}",
        (f"kubelet: {said}",) if said else (),
        "see the machine: its kubelet has stopped reporting, or reports that it cannot run pods",
        lasting=False,
    )


def evicted(pod: Object, snapshot: Snapshot) -> Cause | None:
    """The cause if the kubelet evicted the pod to protect its node."""
    status = mapping(pod.get("status"))
    if status.get("reason") != "Evicted":
        return None
    said = str(status.get("message", ""))
    name = f"pod {pod['metadata']['name']}"
    node = mapping(pod.get("spec")).get("nodeName", "its node")
    if "ephemeral-storage" in said or "DiskPressure" in said or "emptyDir" in said:
        own = "exceeds" in said or "exceeded" in said
        what = "wrote more than it may" if own else f"was driven off {node}, which has a full disk"
        return Cause(Stage.NODE, name, what, (f"kubelet: {said}",), FREE_DISK)
    what = f"was driven off {node}: {_first_sentence(said)}"
    return Cause(Stage.NODE, name, what, (f"kubelet: {said}",))


def pressed(snapshot: Snapshot) -> list[Cause]:
    """A cause for each node that lacks memory or disk space and therefore evicts pods."""
    found = []
    for node in snapshot.nodes or ():
        for kind, words in PRESSURES.items():
            at = condition(node, kind)
            if at.get("status") == "True":
                name = f"node {node['metadata']['name']}"
                remedy = FREE_DISK if kind == "DiskPressure" else ""
                said = (f"kubelet: {at.get('message', '')}",)
                found.append(Cause(Stage.NODE, name, words, said, remedy, lasting=False))
    return found


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(". ") or "no reason given"
