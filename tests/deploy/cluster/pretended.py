"""A Kubernetes with pretended GPU nodes: API server, controllers and scheduler are real, kwok
reports for the nodes and their pods. Needs no privileges: all of it is on the loopback interface.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.config.machine import free_port
from penstock_ops.deploy.devices import DEVICE_LABEL, PRODUCTS
from penstock_ops.deploy.kinds.nic_cluster_policy import SHARES
from tests.deploy.cluster.control_plane import ControlPlane
from tests.deploy.cluster.stages import API, stages
from tests.deploy.programs import program
from tests.e2e.server import eventually

VERSION = "v0.8.0"
"""The version of kwok."""
MANAGED = "kwok.x-k8s.io/node"
"""The label of nodes that kwok reports for."""
LEASE = 8
"""Seconds for which a node's lease holds; it is renewed four times as often."""
EVICTION = 5
"""Seconds after which pods are driven off a node that does not answer."""
PRODUCT = "NVIDIA-H100-80GB-HBM3"
"""Label of nodes whose device has none in our table."""
DEVICES, COUNT = "nvidia.com/gpu", "8"
LOG = (
    "INFO penstock.engine: loading the model",
    "penstock: error: CUDA driver initialization failed: no CUDA-capable device is detected",
)
"""Lines of all containers, as kwok serves them where a kubelet would."""


class Pretended(ControlPlane):
    """Without nodes when the block begins."""

    server_options = (
        *ControlPlane.server_options,
        *("--default-unreachable-toleration-seconds", str(EVICTION)),
        *("--default-not-ready-toleration-seconds", str(EVICTION)),
    )

    def __init__(self, folder: Path) -> None:
        self._kwok = program("sigs.k8s.io/kwok/cmd/kwok", VERSION)
        super().__init__(folder)

    def begin(self) -> None:
        admin = self.start_controllers()
        log = self.folder / "container.log"
        # The format of containerd's logs.
        log.write_text("".join(f"2026-11-24T12:00:00Z stderr F {line}\n" for line in LOG))
        container = {"logsFile": str(log), "previousLogsFile": str(log)}
        every = {
            "apiVersion": API,
            "kind": "ClusterLogs",
            "metadata": {"name": "all"},
            "spec": {"logs": [container]},
        }
        config = self.folder / "kwok.yaml"
        config.write_text("\n---\n".join(map(json.dumps, [*stages(), every])))
        port = str(free_port())
        self._run(
            *(self._kwok, "--kubeconfig", admin, "--config", str(config)),
            *("--manage-nodes-with-label-selector", MANAGED),
            *("--node-lease-duration-seconds", str(LEASE)),
            *("--node-ip", self.address, "--node-port", port),
            *("--server-address", f"{self.address}:{port}"),
        )

    def node(
        self,
        name: str,
        capacity: Mapping[str, str],
        labels: Mapping[str, str],
        taints: Mapping[str, str],
    ) -> None:
        """Make a node, and wait until it is ready; taints are NoSchedule."""
        amounts = {"cpu": "208", "memory": "2Ti", "pods": "110", "ephemeral-storage": "7Ti"}
        amounts |= capacity
        self.call(
            "POST",
            "/api/v1/nodes",
            {
                "metadata": {
                    "name": name,
                    "labels": {MANAGED: "pretended", "kubernetes.io/hostname": name, **labels},
                },
                "spec": {
                    "taints": [
                        {"key": key, "value": value, "effect": "NoSchedule"}
                        for key, value in taints.items()
                    ]
                },
                "status": {"capacity": amounts, "allocatable": amounts},
            },
        )
        eventually(lambda: self.takes_pods(name), f"node {name}")

    def takes_pods(self, name: str) -> bool:
        """Whether a node is ready, and the controllers have taken their own taints off it."""
        taints = self.call("GET", f"/api/v1/nodes/{name}")["spec"].get("taints", [])
        own = any(one["key"].startswith("node.kubernetes.io/") for one in taints)
        return self.node_is_ready(name) and not own

    def gpu_node(
        self, name: str, target: Mapping[str, Any], taints: Mapping[str, str] | None = None
    ) -> None:
        """A node with the fabric of a plan's target, as device plugins and GPU feature discovery
        describe it.
        """
        fabric = dict.fromkeys(target["fabric_resources"], str(SHARES))
        labels = {
            "node.kubernetes.io/instance-type": str(target["node"] or "gpu-8"),
            "nvidia.com/gpu.present": "true",
            DEVICE_LABEL: PRODUCTS.get(target["accelerator"], PRODUCT),
            "nvidia.com/gpu.count": COUNT,
            "nvidia.com/gpu.memory": "81559",
        }
        self.node(name, {DEVICES: COUNT, **fabric}, labels, {DEVICES: "present", **(taints or {})})

    def change_node(self, name: str, **change: object) -> None:
        self.patch(f"/api/v1/nodes/{name}", change)

    def allocatable(self, name: str, resource: str, amount: str) -> None:
        """What the device plugin says is healthy."""
        change = {"status": {"allocatable": {resource: amount}}}
        self.patch(f"/api/v1/nodes/{name}/status", change)

    def remove(self, name: str) -> None:
        self.call("DELETE", f"/api/v1/nodes/{name}")

    @contextmanager
    def silent(self, name: str) -> Iterator[None]:
        """A node whose kubelet has stopped: kwok lets go of it."""
        self.change_node(name, metadata={"labels": {MANAGED: None}})
        try:
            yield
        finally:
            self.change_node(name, metadata={"labels": {MANAGED: "pretended"}})
            eventually(lambda: self.takes_pods(name), f"node {name}")

    def clear(self, namespace: str) -> None:
        """Delete a namespace with its pods, and all nodes."""
        self.call("DELETE", f"/api/v1/namespaces/{namespace}")
        eventually(lambda: self._is_empty(namespace), f"the end of the pods in {namespace}")
        for node in self.call("GET", "/api/v1/nodes")["items"]:
            self.remove(node["metadata"]["name"])

    def _is_empty(self, namespace: str) -> bool:
        """Pods end at once, those of silent nodes too."""
        with self.client() as client:
            for pod in self.pods(namespace):
                path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
                client.delete(path, params={"gracePeriodSeconds": "0"})
            return client.get(f"/api/v1/namespaces/{namespace}").status_code == 404
