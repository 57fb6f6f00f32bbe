"""A stand-in for the LeaderWorkerSet controller: makes the pods of groups, with its labels and
variables, and counts them in the status. The leader's address is an IP address, because this
cluster has no DNS.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Self

import httpx

from penstock_ops.deploy.cluster.readiness import is_true
from tests.deploy.cluster.control_plane import ControlPlane
from tests.e2e.server import eventually

GROUP = "leaderworkerset.x-k8s.io"
PLURAL = "leaderworkersets"
PREFIX = "leaderworkerset.sigs.k8s.io"
LIST = f"/apis/{GROUP}/v1/{PLURAL}"


def definition() -> dict[str, Any]:
    """The kind, without its schema."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
    }
    names = {"plural": PLURAL, "singular": "leaderworkerset", "kind": "LeaderWorkerSet"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


class StandIn(threading.Thread):
    """Runs until the block ends. While `paused`, pods that go are not made again."""

    def __init__(self, cluster: ControlPlane) -> None:
        super().__init__()
        self._cluster, self._done = cluster, threading.Event()
        self.paused = False

    def __enter__(self) -> Self:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self._cluster.call("POST", crds, definition())
        eventually(self._is_known, LIST)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def _is_known(self) -> bool:
        with self._cluster.client() as client:
            return client.get(LIST).is_success

    def run(self) -> None:
        while not self._done.wait(0.5):
            try:
                for found in self._cluster.call("GET", LIST)["items"]:
                    if not found["metadata"].get("deletionTimestamp"):
                        self._reconcile(found)
            except (AssertionError, httpx.TransportError):
                # An object that went meanwhile; the next round sees it.
                continue

    def _reconcile(self, found: dict[str, Any]) -> None:
        metadata, spec = found["metadata"], found["spec"]
        size = spec["leaderWorkerTemplate"]["size"]
        pods = {pod["metadata"]["name"]: pod for pod in self._cluster.pods(metadata["namespace"])}
        ready = 0
        for group in range(spec["replicas"]):
            leader = pods.get(f"{metadata['name']}-{group}")
            wanted = [(0, leader)]
            if leader and (address := leader["status"].get("podIP")):
                names = (f"{metadata['name']}-{group}-{at}" for at in range(1, size))
                wanted += [(at, pods.get(name)) for at, name in enumerate(names, start=1)]
            else:
                address = ""
            for at, pod in wanted:
                if pod is None and not self.paused:
                    self._make(found, group, at, address)
            ready += len(wanted) == size and all(pod and is_true(pod, "Ready") for _, pod in wanted)
        available = str(ready == spec["replicas"])
        status = {
            "replicas": spec["replicas"],
            "readyReplicas": ready,
            "updatedReplicas": spec["replicas"],
            "conditions": [{"type": "Available", "status": available}],
        }
        if status != found.get("status"):
            path = f"/apis/{GROUP}/v1/namespaces/{metadata['namespace']}/{PLURAL}"
            self._cluster.patch(f"{path}/{metadata['name']}/status", {"status": status})

    def _make(self, found: dict[str, Any], group: int, at: int, address: str) -> None:
        metadata = found["metadata"]
        templates = found["spec"]["leaderWorkerTemplate"]
        template = copy.deepcopy(templates["workerTemplate" if at else "leaderTemplate"])
        own = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        variables = [
            {"name": "LWS_LEADER_ADDRESS", **({"value": address} if at else own)},
            {"name": "LWS_GROUP_SIZE", "value": str(templates["size"])},
            {"name": "LWS_WORKER_INDEX", "value": str(at)},
        ]
        for container in template["spec"]["containers"]:
            container["env"] = [*variables, *container.get("env", [])]
        labels = {
            f"{PREFIX}/name": metadata["name"],
            f"{PREFIX}/group-index": str(group),
            f"{PREFIX}/worker-index": str(at),
        }
        suffix = f"-{at}" if at else ""
        owner = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "LeaderWorkerSet",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        pod = {
            "metadata": {
                "name": f"{metadata['name']}-{group}{suffix}",
                "labels": {**template["metadata"]["labels"], **labels},
                "annotations": {f"{PREFIX}/size": str(templates["size"])},
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
        self._cluster.call("POST", f"/api/v1/namespaces/{metadata['namespace']}/pods", pod)
