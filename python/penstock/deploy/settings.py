"""What manifests are made of: a plan, and what a cluster adds to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core import InvalidValueError

SCHEMA = 1
NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
MODELS = "/models"
"""Where the model's volume is mounted."""
PORT, METRICS_PORT = 8000, 8001
MASTER_PORT = 29501


@dataclass(frozen=True, slots=True)
class Volume:
    """Where the weights are: a claim that exists, a directory of the nodes, or a claim that is made
    and filled.
    """

    claim: str = ""
    host_path: str = ""
    pull: str = ""
    """`org/name` of the hub, for a Job that fills a claim of this deployment."""
    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the functions of the kinds read."""

    plan: Mapping[str, Any]
    name: str
    image: str
    volume: Volume
    model_path: str
    """Below the volume; empty: the volume itself."""
    api_key_secret: str = ""
    """Name of a Secret whose key `api-key` clients must send."""
    interface: str = "eth0"
    """Interface of the pods' network, for ranks on several nodes."""
    rdma_devices: str = ""
    """Such as `mlx5_0,mlx5_1`; empty: NCCL finds them."""
    node_selector: Mapping[str, str] | None = None

    @property
    def choice(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.plan["choice"]
        return found

    @property
    def engine(self) -> str:
        return str(self.plan["engine"])

    @property
    def ranks(self) -> int:
        """Ranks of a replica."""
        size: int = self.choice["tensor_parallel_size"] * self.choice["pipeline_parallel_size"]
        return size

    @property
    def nodes(self) -> int:
        """Pods of a replica."""
        return -(-self.ranks // int(self.plan["target"]["per_node"]))

    @property
    def on_pod(self) -> int:
        """Ranks, and devices, of a pod: the most of one."""
        return -(-self.ranks // self.nodes)

    @property
    def has_devices(self) -> bool:
        """Whether pods request accelerators."""
        return bool(self.plan["target"]["resource"])

    @property
    def uses_rdma(self) -> bool:
        return self.nodes > 1 and bool(self.plan["target"]["fabric_resources"])

    @property
    def model(self) -> str:
        """Path in the pod, or on a host."""
        if self.model_path.startswith("/"):
            return self.model_path
        return f"{MODELS}/{self.model_path}".rstrip("/")

    @property
    def load_seconds(self) -> int:
        """Planned time of loading the weights."""
        return int(self.plan["thresholds"]["storage_gb_per_s"]["seconds"])

    @property
    def weights(self) -> int:
        """Bytes of all ranks of a replica."""
        return sum(row["weights"] * len(row["ranks"]) for row in self.plan["memory"])

    def labels(self, role: str = "server") -> dict[str, str]:
        return {
            "app.kubernetes.io/name": self.engine,
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": role,
            "app.kubernetes.io/managed-by": "penstock-deploy",
        }

    def leader(self) -> dict[str, str]:
        """Selector of the pods that serve."""
        own = {
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": "server",
        }
        if self.nodes > 1:
            own["leaderworkerset.sigs.k8s.io/worker-index"] = "0"
        return own


def name_of(text: str) -> str:
    """A name for objects, from a model's: InvalidValueError where nothing is left of it."""
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
