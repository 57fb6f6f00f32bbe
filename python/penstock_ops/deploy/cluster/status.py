"""A snapshot of the cluster as text: which objects are ready, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_ops.deploy.cluster.causes import Cause, causes
from penstock_ops.deploy.cluster.causes.probes import loading
from penstock_ops.deploy.cluster.readiness import RULES, readiness
from penstock_ops.deploy.cluster.snapshot import Snapshot, statuses
from penstock_ops.deploy.objects import mapping

OTHERS = 5
"""Maximum number of causes printed after the first."""


def is_ready(snapshot: Snapshot) -> bool:
    return all(readiness(workload).ready for workload in snapshot.workloads)


def report(snapshot: Snapshot) -> list[str]:
    """Lines with the readiness of each workload, the first cause with its evidence, and one line
    for each other cause.
    """
    lines = list(_workloads(snapshot))
    found = causes(snapshot)
    if found:
        lines += explained(found[0])
        lines += [f"also: {_line(cause)}" for cause in found[1 : OTHERS + 1]]
        if len(found) > OTHERS + 1:
            lines.append(f"also: {len(found) - OTHERS - 1} more")
    elif not is_ready(snapshot):
        lines += progress(snapshot)
    return lines


def _workloads(snapshot: Snapshot) -> Iterator[str]:
    """A readiness line for each object of a kind in RULES; for all objects if there is none of
    them.
    """
    counted = [one for one in snapshot.workloads if one.reference.kind in RULES]
    for workload in counted or snapshot.workloads:
        yield f"{workload.title}: {readiness(workload).words}"


def explained(cause: Cause) -> list[str]:
    lines = [f"cause: {_line(cause)}", *(f"  {detail}" for detail in cause.details)]
    return lines + ([f"  do: {cause.remedy}"] if cause.remedy else [])


def _line(cause: Cause) -> str:
    return f"{cause.subject}: {cause.summary}"


def progress(snapshot: Snapshot) -> list[str]:
    """Lines about pods that are starting or shutting down."""
    lines = []
    for workload in snapshot.workloads:
        for pod in workload.pods:
            if pod["metadata"].get("deletionTimestamp"):
                lines.append(f"pod {pod['metadata']['name']} is draining")
            elif words := loading(pod, snapshot) or _waiting(
                str(pod["metadata"]["name"]), pod["status"].get("phase"), statuses(pod)
            ):
                lines.append(words)
    return [f"progress: {line}" for line in dict.fromkeys(lines)] or ["progress: none yet"]


def _waiting(name: str, phase: object, found: Iterable[object]) -> str:
    reasons = [
        str(mapping(mapping(mapping(one).get("state")).get("waiting")).get("reason", ""))
        for one in found
    ]
    reason = next(filter(None, reasons), "")
    if reason or phase == "Pending":
        return f"pod {name} is pending" + (f" ({reason})" if reason else "")
    return ""
