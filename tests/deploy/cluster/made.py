"""Objects of the API made by hand, around one deployment named `tiny`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from penstock_ops.deploy.cluster.causes import Cause, causes
from penstock_ops.deploy.cluster.manifests import Reference
from penstock_ops.deploy.cluster.snapshot import Snapshot, Workload

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
LABELS = {"app": "tiny"}
GIB = 2**30


def at(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def container(**more: Any) -> dict[str, Any]:
    return {"name": "engine", "image": "registry/engine:1", **more}


def pod(
    name: str = "tiny-a",
    *,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "models",
        "uid": f"uid-{name}",
        "labels": labels or LABELS,
        "creationTimestamp": at(100),
    }
    phase = {"phase": "Pending", **(status or {})}
    return {
        "metadata": metadata,
        "spec": {"containers": [container()], "nodeName": "n1", **(spec or {})},
        "status": phase,
    }


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": "engine", "image": "registry/engine:1", "ready": False, "state": state, **more}


def ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": at(30), **more}}


def event(found: dict[str, Any], reason: str, message: str, ago: float = 5) -> dict[str, Any]:
    metadata = found["metadata"]
    about = {"name": metadata["name"], "uid": metadata.get("uid")}
    return {
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "lastTimestamp": at(ago),
        "metadata": {"creationTimestamp": at(ago)},
    }


def node(name: str = "n1", **more: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}]
    allocatable = {"memory": "16Gi", "cpu": "4", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {},
        "status": {"conditions": conditions, "allocatable": allocatable},
        **more,
    }


def workload(
    *pods: dict[str, Any], kind: str = "Deployment", live: dict[str, Any] | None = None, **more: Any
) -> Workload:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container()]}}
    manifest = {"kind": kind, "metadata": {"name": "tiny"}, "spec": {"template": template, **more}}
    reference = Reference(manifest, "models", "/apis")
    return Workload(reference, {"metadata": {}, "spec": {}} if live is None else live, pods)


def snapshot(*workloads: Workload, **more: Any) -> Snapshot:
    return Snapshot(NOW, workloads, **{"nodes": [node()], "all_pods": [], **more})


def first(found: dict[str, Any], *events: dict[str, Any], **more: Any) -> Cause:
    return causes(snapshot(workload(found), events=events, **more))[0]


def unscheduled(message: str, **spec: Any) -> dict[str, Any]:
    found = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    waits = pod(status={"conditions": [{**found, "message": message}]}, spec=spec)
    del waits["spec"]["nodeName"]
    return waits


def asking(**amounts: str) -> list[dict[str, Any]]:
    names = {"gpu": "nvidia.com/gpu"}
    asked = {names.get(key, key): amount for key, amount in amounts.items()}
    return [container(resources={"requests": asked})]


def crashed(last: dict[str, Any], **more: Any) -> dict[str, Any]:
    status = waiting("CrashLoopBackOff", lastState=last, restartCount=3, **more)
    return pod(status={"containerStatuses": [status], "phase": "Running"})


def running(*, started: bool, ago: float, last: dict[str, Any] | None = None) -> dict[str, Any]:
    status = {
        "name": "engine",
        "ready": False,
        "started": started,
        "state": {"running": {"startedAt": at(ago)}},
        "lastState": last or {},
        "restartCount": 1 if last else 0,
    }
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": at(40)}
    probe = {"periodSeconds": 10, "failureThreshold": 12}
    return pod(
        status={"containerStatuses": [status], "phase": "Running", "conditions": [ready]},
        spec={"containers": [container(startupProbe=probe)]},
    )
