"""Pods that the cluster refuses to create, and claims without a volume."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.deploy.cluster.causes.cause import Cause, Stage
from penstock_ops.deploy.cluster.readiness import condition
from penstock_ops.deploy.cluster.snapshot import Object, Snapshot, Workload
from penstock_ops.deploy.objects import mapping

QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.*), used: (?P<used>.*), "
    r"limited: (?P<limit>.*)"
)
REFUSALS = ("FailedCreate", "FailedCreatePod", "FailedDelete", "GroupsProgressing")


def refused(workload: Workload, snapshot: Snapshot) -> Cause | None:
    """The cause if a controller could not create a pod, according to its condition or its last
    event.
    """
    if workload.live is None:
        return None
    failure = condition(workload.live, "ReplicaFailure")
    if failure.get("status") == "True":
        said = str(failure.get("message", ""))
    else:
        own = [event for event in snapshot.events if _is_refusal(event, workload)]
        # A refusal that is older than the newest pod no longer applies.
        newest = max(
            (str(pod["metadata"]["creationTimestamp"]) for pod in workload.pods), default=""
        )
        said = next((m for m in reversed(own) if _time(m) > newest), {}).get("message", "")
    return forbidden(workload.title, said) if said else None


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _is_refusal(event: Object, workload: Workload) -> bool:
    name = str(mapping(event.get("involvedObject")).get("name", ""))
    own = workload.reference.name
    return event.get("reason") in REFUSALS and (name == own or name.startswith(f"{own}-"))


def forbidden(subject: str, said: str) -> Cause:
    """The cause of a refused pod. `said` is the API server's answer to the controller."""
    details = (f"API server: {said}",)
    if found := QUOTA.search(said):
        words = (
            f"the quota {found['name']} allows no more pods: asked for {found['asked']}, "
            f"used {found['used']} of {found['limit']}"
        )
        return Cause(Stage.FORBIDDEN, subject, words, remedy="raise the quota, or ask for less")
    if "violates PodSecurity" in said:
        remedy = "label the namespace for a less strict Pod Security, or run without what it names"
        return Cause(Stage.FORBIDDEN, subject, "the namespace forbids its pods", details, remedy)
    if "serviceaccount" in said.lower() and "not found" in said:
        return Cause(Stage.FORBIDDEN, subject, "its service account is missing", details)
    return Cause(Stage.FORBIDDEN, subject, "its pods are refused", details)


def unbound(workload: Workload, snapshot: Snapshot) -> Cause | None:
    """A volume claim without a volume. A claim that only waits for its first pod is no problem."""
    claim = workload.live
    if workload.reference.kind != "PersistentVolumeClaim" or claim is None:
        return None
    phase = mapping(claim.get("status")).get("phase")
    if phase == "Bound":
        return None
    if phase == "Lost":
        return Cause(Stage.CLAIM, f"claim {workload.reference.name}", "has lost its volume")
    said = [
        str(event.get("message", ""))
        for event in snapshot.about(claim, "FailedBinding", "ProvisioningFailed")
    ]
    if not said:
        return None
    spec = mapping(claim.get("spec"))
    asked = mapping(mapping(spec.get("resources")).get("requests")).get("storage", "?")
    modes = ", ".join(spec.get("accessModes") or [])
    kind = spec.get("storageClassName")
    words = f"no volume of {asked} ({modes}) for it"
    words += f" in storage class {kind}" if kind else "; the cluster has no default storage class"
    remedy = "penstock deploy k8s --storage-class, or make a volume"
    name = f"claim {workload.reference.name}"
    return Cause(Stage.CLAIM, name, words, tuple(_events(said)), remedy)


def _events(said: list[str]) -> Iterator[str]:
    yield f"controller: {said[-1]}"
