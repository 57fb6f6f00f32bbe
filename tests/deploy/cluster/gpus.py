"""Plans for GPU nodes, deployed to a cluster that pretends to have such nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.cli.main import main
from tests.deploy.cluster.applied import Applied
from tests.deploy.cluster.pretended import DEVICES, Pretended
from tests.e2e.server import eventually

IMAGE = "registry.example/engine:1"
NAME = "big"


class OnGpus(Applied):
    """Manifests of a plan, and the nodes of its target."""

    def __init__(
        self, cluster: Pretended, folder: Path, namespace: str, plan: Callable[[str], Path]
    ) -> None:
        super().__init__(cluster, folder, namespace)
        self.nodes, self._plan, self._changed = cluster, plan, folder / "plan.yaml"
        self.target: Mapping[str, Any] = {}

    def write(self, kind: str, *words: str, replicas: int = 1, image: str = IMAGE) -> None:
        """Manifests of a plan of tests.deploy.conftest, with so many replicas."""
        found = yaml.safe_load(self._plan(kind).read_text())
        found["choice"]["replicas"] = replicas
        self.target = found["target"]
        self._changed.write_text(yaml.safe_dump(found))
        given = ("--image", image, "--name", NAME, "--host-path", "/srv/models")
        asked = ["deploy", "k8s", str(self._changed), "-o", str(self.folder), *given, *words]
        assert main(asked) == 0

    def add_nodes(self, count: int, taints: Mapping[str, str] | None = None) -> None:
        """GPU nodes `gpu-1` and so on, and one without devices, which the scheduler sees too."""
        self.nodes.node("cpu-1", {}, {"node.kubernetes.io/instance-type": "cpu-32"}, {})
        for number in range(1, count + 1):
            self.nodes.gpu_node(f"gpu-{number}", self.target, taints)

    def apply(self) -> int:
        """The status of `penstock deploy apply`; pretended pods are ready within seconds."""
        return self.run("apply", "--timeout", "90")

    def token(self) -> None:
        """The secret by which the pods of a group know each other."""
        body = {"metadata": {"name": f"{NAME}-cluster"}, "stringData": {"token": "a" * 64}}
        self.cluster.call("POST", f"/api/v1/namespaces/{self.namespace}/secrets", body)

    def places(self) -> dict[str, str]:
        """The node of each pod that has one."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.pods()
            if "nodeName" in pod["spec"]
        }

    def occupy(self, node: str, devices: int) -> None:
        """Another pod on a node, which has so many of its devices."""
        amounts = {DEVICES: str(devices)}
        container = {
            "name": "other",
            "image": "registry.example/other:1",
            "resources": {"limits": amounts},
        }
        spec = {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
        }
        name = f"other-{node}"
        body = {"metadata": {"name": name, "labels": {"app": "other"}}, "spec": spec}
        self.cluster.call("POST", self.path("pods"), body)
        eventually(lambda: self.places().get(name) == node, name)

    def wait_for_eviction(self, node: str) -> None:
        """Wait until the controllers have driven our pods off a node; their kubelet cannot end
        them.
        """
        eventually(lambda: node not in self.places().values(), f"pods driven off {node}")
