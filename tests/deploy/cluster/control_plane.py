"""A cluster whose pods are scheduled and whose objects are followed by controllers; its nodes are
added by subclasses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from penstock_ops.deploy.cluster.readiness import is_true
from tests.kubernetes.bed import ADMIN, Bed

GRACE = "20s"
"""Time without a lease or status from the kubelet after which a node is not ready."""


class ControlPlane(Bed):
    """API server, controller manager and scheduler of one Kubernetes."""

    server_options = ("--kubelet-preferred-address-types", "InternalIP")

    def __enter__(self) -> Self:
        try:
            super().__enter__()
            self.begin()
        except BaseException:
            print(logs(self.folder))
            self.__exit__(None, None, None)
            raise
        return self

    def begin(self) -> None:
        """What a cluster has besides an API server."""
        self.start_controllers()

    def start_controllers(self) -> str:
        """Start controller manager and scheduler; the administrator's kubeconfig."""
        admin = str(self.kubeconfig("admin.yaml", {"token": ADMIN}))
        words = ("--kubeconfig", admin, "--leader-elect=false", "--secure-port", "0")
        self._start(
            *("kube-controller-manager", *words, "--node-monitor-grace-period", GRACE),
            *("--service-account-private-key-file", "sa.key"),
            *("--root-ca-file", str(self.authority)),
            *("--flex-volume-plugin-dir", f"{self.folder}/plugins"),
        )
        self._start("kube-scheduler", *words)
        return admin

    def node_is_ready(self, name: str) -> bool:
        with self.client() as client:
            answer = client.get(f"/api/v1/nodes/{name}")
        return answer.is_success and is_true(answer.json(), "Ready")


def logs(folder: Path, lines: int = 20) -> str:
    """The ends of the logs of what runs in a folder."""
    ends = (
        f"== {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
        for file in sorted(folder.glob("*.log"))
    )
    return "\n".join(ends)
