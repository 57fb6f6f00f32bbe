"""The virtual machines of a plan: one for each node, with all devices of a node type."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_ops.plan.hardware.pci import NodePci


@dataclass(frozen=True, slots=True)
class Machines:
    """What the objects of the virtual machines need."""

    name: str
    namespace: str
    storage_class: str
    count: int
    """Number of virtual machines, each on a host of its own."""
    cpus: int
    memory: str
    """As a Kubernetes quantity, such as `1900Gi`."""
    node: NodePci
    mmio_gib: int
    kubernetes: str
    cluster_class: str
    control_plane_class: str
    containers: str
    """Size of the volume for container images, as a Kubernetes quantity."""

    @property
    def class_name(self) -> str:
        """Name of the VM class."""
        return f"{self.name}-{self.node.pairs}gpu"
