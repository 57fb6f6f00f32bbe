"""Snapshots of a real cluster as files: what `penstock deploy status` looked at, and what it said.
The tests on a real node write one for each cause beside their manifests; a choice of them is in
tests/fixtures/kubernetes/causes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock_ops.deploy.cluster.manifests import Reference
from penstock_ops.deploy.cluster.snapshot import Snapshot, Workload
from penstock_ops.deploy.cluster.status import report

EVENT: dict[str, Any] = {
    "metadata": {"creationTimestamp": None},
    "involvedObject": {"name": None, "uid": None},
    "reason": None,
    "message": None,
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "series": None,
}
LIVE: dict[str, Any] = {
    "metadata": {"name": None, "uid": None, "generation": None},
    "spec": dict.fromkeys(("replicas", "accessModes", "storageClassName", "resources")),
    "status": None,
}
NODE: dict[str, Any] = {
    "metadata": {"name": None, "labels": None},
    "spec": None,
    "status": {"allocatable": None, "capacity": None, "conditions": None},
}
POD: dict[str, Any] = {
    "metadata": {"name": None, "deletionTimestamp": None},
    "spec": {"nodeName": None, "containers": None},
    "status": {"phase": None},
}
"""Fields that rules read; None is all of it."""


def save(snapshot: Snapshot, file: Path) -> None:
    content = {
        "report": report(snapshot),
        "now": snapshot.now.isoformat(),
        "workloads": [
            {
                "manifest": one.reference.manifest,
                "namespace": one.reference.namespace,
                "live": one.live and _part(one.live, LIVE),
                "pods": [_slim(pod) for pod in one.pods],
            }
            for one in snapshot.workloads
        ],
        "events": [_part(event, EVENT) for event in snapshot.events],
        "nodes": [_part(node, NODE) for node in snapshot.nodes or ()],
        "all_pods": [_part(pod, POD) for pod in snapshot.all_pods or ()],
        "logs": [[*key, list(lines)] for key, lines in snapshot.logs.items()],
    }
    text = json.dumps(content, separators=(",", ":"))
    file.write_text(text.replace(str(Path.home()), "/srv/home") + "\n")


def load(file: Path) -> tuple[Snapshot, list[str]]:
    """The snapshot, and the report of the day."""
    content = json.loads(file.read_text())
    workloads = [
        Workload(
            Reference(one["manifest"], one["namespace"], "/recorded"), one["live"], one["pods"]
        )
        for one in content["workloads"]
    ]
    snapshot = Snapshot(
        datetime.fromisoformat(content["now"]),
        workloads,
        content["events"],
        content["nodes"],
        content["all_pods"],
        {(pod, container): lines for pod, container, lines in content["logs"]},
    )
    return snapshot, content["report"]


def _slim(found: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: one for key, one in found["metadata"].items() if key != "managedFields"}
    return {**found, "metadata": metadata}


def _part(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Only these fields, as deep as they say."""
    return {
        key: _part(found[key], inner) if inner else found[key]
        for key, inner in wanted.items()
        if key in found
    }
