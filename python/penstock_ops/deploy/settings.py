"""Input of manifests: a plan, and the settings of the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.config.sections import TierConfig
from penstock.core import InvalidValueError

NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
MODELS = "/models"
"""Mount point of the model's volume."""
KERNELS = ".kernels"
"""Directory of a claim filled by a Job, in which pods keep their compiled kernels."""
KERNEL_CACHE = "/tmp/.triton/cache"
"""Triton's kernel cache, since HOME is /tmp."""
PORT, METRICS_PORT = 8000, 8001
TOPOLOGY, TOPOLOGY_FOLDER = "topology.xml", "/etc/nccl-topology"
"""NCCL's topology file, and its mount point."""
MASTER_PORT = 29501
GATEWAY_PORT, PICKER_PORT = 8080, 9002


@dataclass(frozen=True, slots=True)
class Volume:
    """Source of the weights: an existing claim, a directory of the nodes, a new claim filled by a
    Job, or an image.
    """

    claim: str = ""
    host_path: str = ""
    pull: str = ""
    """`org/name` on the hub, for a Job that fills a claim of this deployment."""
    storage_class: str = ""
    image: str = ""
    """Reference of an OCI image or artifact with the weights, preferably with its digest."""

    @property
    def kind(self) -> str:
        """Kind of volume in the plan's terms. Hosts without Kubernetes have a directory."""
        if self.image:
            return "image"
        return "claim" if self.claim or self.pull else "host_path"


@dataclass(frozen=True, slots=True)
class Front:
    """`penstock gateway` in front of the replicas: a proxy, or the endpoint picker of a Gateway."""

    image: str
    gateway_class: str = ""
    """GatewayClass of the Gateway; empty if clients connect to the proxy."""
    tls_secret: str = ""
    """Secret of type kubernetes.io/tls, for Gateways that use TLS to a picker."""
    objectives: Mapping[str, int] | None = None
    """Priorities by name."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Autoscaling above the plan's replicas while its thresholds are exceeded."""

    most: int
    prometheus: str = ""
    """Prometheus address for KEDA; if empty, Kubernetes' autoscaler with custom metrics."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all manifests."""

    plan: Mapping[str, Any]
    name: str
    image: str
    volume: Volume
    model_path: str
    """Path inside the volume; empty for the volume itself."""
    api_key_secret: str = ""
    """Name of a Secret with the key `api-key`, which clients must send."""
    interface: str = "eth0"
    """Network interface of the pods, for ranks on several nodes."""
    rdma_devices: str = ""
    """For example `mlx5_0,mlx5_1`; if empty, NCCL detects them."""
    node_selector: Mapping[str, str] | None = None
    monitor: bool = False
    """Whether the cluster has the Prometheus operator's kinds."""
    front: Front | None = None
    scaling: Scaling | None = None
    nic_interfaces: tuple[str, ...] = ()
    """Interfaces of the nodes' adapters, in the order of the plan's fabric resources."""
    topology: str = ""
    """Text of NCCL's topology file, for virtual machines."""
    tiers: Mapping[str, TierConfig] | None = None
    """Penstock's KV tiers in order, keyed by their `--kv-tier` text."""
    ray: bool = False
    """Whether ranks are actors of KubeRay's Ray cluster, instead of nodes of a LeaderWorkerSet."""

    @property
    def choice(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.plan["choice"]
        return found

    @property
    def engine(self) -> str:
        return str(self.plan["engine"])

    @property
    def ranks(self) -> int:
        """Number of ranks of a replica."""
        size: int = self.choice["tensor_parallel_size"] * self.choice["pipeline_parallel_size"]
        return size

    @property
    def nodes(self) -> int:
        """Number of pods of a replica."""
        return -(-self.ranks // int(self.plan["target"]["per_node"]))

    @property
    def needs_token(self) -> bool:
        """Whether Penstock's nodes share a secret. Ray has its own."""
        return self.engine == "penstock" and self.nodes > 1 and not self.ray

    @property
    def on_pod(self) -> int:
        """Maximum number of ranks, and devices, of a pod."""
        return -(-self.ranks // self.nodes)

    @property
    def spans(self) -> bool:
        """Whether a stage spans several pods."""
        return int(self.choice["tensor_parallel_size"]) > self.on_pod

    @property
    def has_devices(self) -> bool:
        """Whether pods request accelerators."""
        return bool(self.plan["target"]["resource"])

    @property
    def uses_rdma(self) -> bool:
        return self.nodes > 1 and bool(self.plan["target"]["fabric_resources"])

    def tier_bytes(self, kind: str) -> int:
        """Bytes of a kind of tier in one pod, which holds the KV of its own ranks."""
        tiers = (self.tiers or {}).values()
        return -(-sum(tier.size_bytes or 0 for tier in tiers if tier.kind == kind) // self.nodes)

    @property
    def disk(self) -> str:
        """Directory of the disk tier; empty without one."""
        paths = [tier.path for tier in (self.tiers or {}).values() if tier.kind == "disk"]
        return paths[0] or "" if paths else ""

    @property
    def model(self) -> str:
        """Path in the pod, or on a host."""
        if self.model_path.startswith("/"):
            return self.model_path
        return f"{MODELS}/{self.model_path}".rstrip("/")

    @property
    def load_seconds(self) -> int:
        """Planned seconds from container start to serving: reading the volume, and start-up."""
        return int(self._start["weights"][self.volume.kind]["seconds"])

    @property
    def pull_seconds(self) -> int:
        """Planned seconds until containers start on a node that has neither image nor weights; 0 on
        hosts without containers.
        """
        if not self.image:
            return 0
        weights = self._start["weights"][self.volume.kind]["pull_seconds"]
        return int(self._start["image"]["seconds"]) + int(weights)

    @property
    def start_seconds(self) -> int:
        """Planned seconds from pod creation to serving."""
        return self.pull_seconds + self.load_seconds

    @property
    def _start(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.plan["start"]
        return found

    @property
    def weights(self) -> int:
        """Weight bytes of all ranks of a replica."""
        return sum(row["weights"] * len(row["ranks"]) for row in self.plan["memory"])

    def threshold(self, name: str) -> float:
        """Maximum load of a replica for a metric."""
        return float(self.plan["thresholds"][name]["needed"])


def name_of(text: str) -> str:
    """An object name derived from a model's name. InvalidValueError if nothing is left of it."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    if not NAME.fullmatch(found):
        found = f"model-{found}".strip("-")[:40].strip("-")
    return found


def checked_name(flag: str, text: str) -> str:
    if not NAME.fullmatch(text):
        raise InvalidValueError(
            flag, text, "at most 40 lower-case letters, digits and hyphens, a letter first"
        )
    return text
