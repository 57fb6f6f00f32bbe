"""Whether an object in the cluster is ready, according to its status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_ops.deploy.cluster.snapshot import Object, Workload
from penstock_ops.deploy.objects import mapping, mappings


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    words: str
    """Text such as `1 of 2 ready`."""


def readiness(workload: Workload) -> Readiness:
    """Readiness of an object. Kinds without a rule in RULES are ready when they exist."""
    if workload.live is None:
        return Readiness(False, "not in the cluster")
    rule = RULES.get(workload.reference.kind)
    return rule(workload.live) if rule else Readiness(True, "there")


def condition(found: Object, kind: str) -> Object:
    """The condition of type `kind` in the object's status; empty if there is none."""
    listed = mappings(mapping(found.get("status")).get("conditions"))
    return next((one for one in listed if one.get("type") == kind), {})


def is_true(found: Object, kind: str) -> bool:
    return condition(found, kind).get("status") == "True"


def _replicas(found: Object, available: str) -> Readiness:
    """Readiness of a workload whose status counts pods. `available` is the key of the number of
    ready pods. A rollout is over when no pod of the old version is left.
    """
    status, metadata = mapping(found.get("status")), mapping(found.get("metadata"))
    wanted = mapping(found.get("spec")).get("replicas", 1)
    ready, updated = status.get(available, 0), status.get("updatedReplicas", 0)
    total = status.get("replicas", 0)
    seen = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    if not seen:
        return Readiness(False, "not looked at by its controller yet")
    words = f"{ready} of {wanted} ready"
    if updated < wanted or total > updated:
        words += f", {updated} of the newest version"
    return Readiness(ready >= wanted and updated >= wanted and total <= updated, words)


def _deployment(found: Object) -> Readiness:
    return _replicas(found, "availableReplicas")


def _stateful_set(found: Object) -> Readiness:
    return _replicas(found, "readyReplicas")


def _groups(found: Object) -> Readiness:
    """Readiness of a LeaderWorkerSet. Its status does not tell which generation it describes."""
    status = mapping(found.get("status"))
    wanted = mapping(found.get("spec")).get("replicas", 1)
    ready, updated = status.get("readyReplicas", 0), status.get("updatedReplicas", 0)
    done = ready >= wanted and updated >= wanted and is_true(found, "Available")
    return Readiness(done, f"{ready} of {wanted} groups ready")


def _job(found: Object) -> Readiness:
    if is_true(found, "Complete"):
        return Readiness(True, "complete")
    if is_true(found, "Failed"):
        return Readiness(False, f"failed: {condition(found, 'Failed').get('message', '')}")
    return Readiness(False, "running")


def _pod(found: Object) -> Readiness:
    ready = is_true(found, "Ready")
    return Readiness(ready, "ready" if ready else "not ready")


RULES: dict[str, Callable[[Object], Readiness]] = {
    "Deployment": _deployment,
    "StatefulSet": _stateful_set,
    "LeaderWorkerSet": _groups,
    "Job": _job,
    "Pod": _pod,
}
