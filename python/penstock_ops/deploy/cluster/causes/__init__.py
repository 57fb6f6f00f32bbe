"""Diagnosis: derives from API objects why pods do not serve. The most basic cause comes first.

Causes are ordered by stage: an image that cannot be pulled comes before the failing probes that
result from it. The cause of a Job that fills the model's volume comes before causes of the pods
that read the volume.
"""

from __future__ import annotations

from penstock_ops.deploy.cluster.causes.cause import Cause, Stage
from penstock_ops.deploy.cluster.causes.containers import of_container, volume
from penstock_ops.deploy.cluster.causes.creation import refused, unbound
from penstock_ops.deploy.cluster.causes.groups import incomplete, turned_away
from penstock_ops.deploy.cluster.causes.nodes import evicted, lost_node, pressed
from penstock_ops.deploy.cluster.causes.probes import probe
from penstock_ops.deploy.cluster.causes.scheduling import unscheduled
from penstock_ops.deploy.cluster.readiness import is_true, readiness
from penstock_ops.deploy.cluster.snapshot import Object, Snapshot, Workload
from penstock_ops.deploy.objects import mapping

__all__ = ["Cause", "Stage", "causes"]

OF_POD = (lost_node, unscheduled, volume, turned_away, probe, of_container)
"""Functions that diagnose one pod, in the order of a pod's life cycle. The first result counts."""


def causes(snapshot: Snapshot) -> list[Cause]:
    """Distinct causes, the most basic one first. Empty if everything is ready or still
    progressing.
    """
    found: list[tuple[bool, Cause]] = []
    pulling = False
    for workload in snapshot.workloads:
        if readiness(workload).ready and workload.reference.kind != "PersistentVolumeClaim":
            continue
        is_job = workload.reference.kind == "Job"
        own = _of_workload(workload, snapshot)
        pulling |= is_job and not own and workload.live is not None
        found += [(not is_job, cause) for cause in own]
    if pulling:
        # While the Job fills their volume, servers restart. Ignore the failures that follow from
        # this.
        found = [each for each in found if each[1].stage < Stage.INIT]
    if any(cause.stage is Stage.NODE for _, cause in found):
        found += [(True, cause) for cause in pressed(snapshot)]
    ordered = sorted(found, key=lambda each: (*each[:1], each[1].stage))
    kept: dict[tuple[str, str], Cause] = {}
    for _, cause in ordered:
        # Report the same problem of a node only once, with the evidence found first.
        kept.setdefault((cause.subject, cause.summary), cause)
    return list(kept.values())


def _of_workload(workload: Workload, snapshot: Snapshot) -> list[Cause]:
    if workload.live is None:
        remedy = "penstock deploy apply"
        return [Cause(Stage.MISSING, workload.title, "is not in the cluster", remedy=remedy)]
    found = [refused(workload, snapshot), unbound(workload, snapshot)]
    found += incomplete(workload, snapshot)
    # If a node does not respond now, pods that were evicted earlier matter less: put them last.
    is_silent = any(lost_node(pod, snapshot) for pod in workload.pods if _is_waited_for(pod))
    pods = sorted(workload.pods, key=lambda pod: is_silent and _is_evicted(pod))
    # A terminating pod is stuck only if its node does not respond.
    found += [
        lost_node(pod, snapshot) if _is_ending(pod) else _of_pod(pod, snapshot) for pod in pods
    ]
    return [cause for cause in found if cause is not None]


def _of_pod(pod: Object, snapshot: Snapshot) -> Cause | None:
    if _is_evicted(pod):
        return evicted(pod, snapshot)
    if is_true(pod, "Ready") or mapping(pod.get("status")).get("phase") == "Succeeded":
        return None
    return next(filter(None, (rule(pod, snapshot) for rule in OF_POD)), None)


def _is_waited_for(pod: Object) -> bool:
    has_ended = mapping(pod.get("status")).get("phase") in ("Failed", "Succeeded")
    return not has_ended and not is_true(pod, "Ready")


def _is_evicted(pod: Object) -> bool:
    return mapping(pod.get("status")).get("reason") == "Evicted"


def _is_ending(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
