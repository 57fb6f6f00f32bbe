"""Groups of a LeaderWorkerSet in which a pod is missing, so that the group's other pods wait."""

from __future__ import annotations

import re
from collections import defaultdict

from penstock_ops.deploy.cluster.causes.cause import Cause, Stage
from penstock_ops.deploy.cluster.snapshot import Object, Snapshot, Workload, statuses
from penstock_ops.deploy.objects import mapping, pods_of

TURNED_AWAY = re.compile(
    r"waiting for node (\d+) of .*a caller from (\S+) was turned away: it has not"
)
PREFIX = "leaderworkerset.sigs.k8s.io"


def incomplete(workload: Workload, snapshot: Snapshot) -> list[Cause]:
    """A cause for each group with missing or terminating pods, unless the group is too new."""
    if workload.reference.kind != "LeaderWorkerSet":
        return []
    size = next((pod.size for pod in pods_of(workload.reference.manifest)), 1)
    groups: dict[str, dict[str, Object]] = defaultdict(dict)
    for pod in workload.pods:
        labels = mapping(pod["metadata"].get("labels"))
        at = str(labels.get(f"{PREFIX}/worker-index", ""))
        if not pod["metadata"].get("deletionTimestamp"):
            groups[str(labels.get(f"{PREFIX}/group-index", "?"))][at] = pod
    found = []
    for group, pods in sorted(groups.items()):
        gone = [at for at in range(size) if str(at) not in pods]
        if gone and any(not _is_new(pod, snapshot) for pod in pods.values()):
            named = ", ".join("the leader" if at == 0 else f"worker {at}" for at in gone)
            words = f"{named} of {size} pods {'is' if len(gone) == 1 else 'are'} missing"
            subject = f"group {group} of {workload.reference.name}"
            remedy = "see the LeaderWorkerSet controller, which makes the pods of a group"
            found.append(Cause(Stage.GROUP, subject, words, (), remedy, lasting=False))
    return found


def turned_away(pod: Object, snapshot: Snapshot) -> Cause | None:
    """A leader that waits for a node, because its log shows that it rejected a pod with another
    token.
    """
    for status in statuses(pod):
        log = snapshot.logs.get((str(pod["metadata"]["name"]), str(status["name"])), ())
        found = TURNED_AWAY.search(log[-1]) if log and not status.get("ready") else None
        if found:
            words = f"waits for node {found[1]}: the pod at {found[2]} has another token"
            remedy = (
                "pods read the secret when they start: delete the pods that started before it "
                "changed"
            )
            name = f"pod {pod['metadata']['name']}"
            return Cause(Stage.GROUP, name, words, (f"log: {log[-1]}",), remedy, lasting=False)
    return None


def _is_new(pod: Object, snapshot: Snapshot) -> bool:
    """Whether the pod is so new that the rest of its group may still appear."""
    age = snapshot.age(pod["metadata"].get("creationTimestamp"))
    return age is not None and age < 10
