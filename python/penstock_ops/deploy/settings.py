"""Settings of a deployment: a plan, and the user's choices for the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.config.sections import TierConfig
from penstock.core import InvalidValueError
from penstock_ops.deploy.volumes import EMPTY_DIR, KvVolume, Volume

NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
MODELS = "/models"
"""Directory in the pods where the volume with the model is mounted."""
KERNELS = ".kernels"
"""Directory in the model's volume for compiled kernels, if a Job fills the volume."""
KERNEL_CACHE = "/tmp/.triton/cache"
"""Directory of Triton's kernel cache, because HOME is /tmp."""
PORT, METRICS_PORT = 8000, 8001
TOPOLOGY, TOPOLOGY_FOLDER = "topology.xml", "/etc/nccl-topology"
"""Name of NCCL's topology file, and the directory where it is mounted."""
MASTER_PORT = 29501
SHUTDOWN = 60
"""Seconds that open requests may take to end after a termination signal."""
PULL_BASE, PULL_RATE = 600, 50_000_000
"""Seconds, and bytes per second, of the slowest download of weights that pods wait for."""
GATEWAY_PORT, PICKER_PORT = 8080, 9002


@dataclass(frozen=True, slots=True)
class Share:
    """Another deployment, by its name, and the percentage of the requests that it gets."""

    name: str
    percent: int


@dataclass(frozen=True, slots=True)
class Front:
    """A `penstock gateway` in front of the replicas: a proxy, or the endpoint picker of a
    Gateway.
    """

    image: str
    gateway_class: str = ""
    """GatewayClass of the Gateway; empty if clients connect to the proxy."""
    tls_secret: str = ""
    """Name of a Secret of type kubernetes.io/tls; empty without TLS. Some Gateways connect to a
    picker only with TLS.
    """
    objectives: Mapping[str, int] | None = None
    """Priority of each InferenceObjective, by name."""
    failure_mode: str = "FailClose"
    """What a Gateway does with a request while no picker answers: FailClose refuses it, FailOpen
    sends it to any pod.
    """
    port: int = 80
    """Port of the Gateway's listener that the picker serves."""
    plain_port: int | None = None
    """Port of a second listener, whose route balances over the Service without the picker."""
    canary: Share | None = None
    """Pool that gets a share of the requests."""
    mirror: Share | None = None
    """Service, or pool of a proxy, that gets copies of a share of the requests."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Autoscaling: adds replicas to those of the plan while a threshold of the plan is exceeded, up
    to `most`.
    """

    most: int
    prometheus: str = ""
    """Address of Prometheus for KEDA; empty for Kubernetes' own autoscaler with custom metrics."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What pods and Services get from the cluster besides nodes and volumes."""

    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets with credentials of the image registries."""
    service_type: str = "ClusterIP"
    """Type of the Service for clients."""
    ip_family: str = "dual"
    """`dual` for all IP families of the cluster, or the only one of Services: IPv4 or IPv6."""
    scrape: bool = False
    """Whether pods have the `prometheus.io` annotations, which Prometheus finds without an
    operator.
    """
    monitoring: str = "monitoring"
    """Namespace whose pods may read metrics."""
    any_device: bool = False
    """Whether any node with the device's resource may run a pod, whatever its product label."""
    pull_timeout: int | None = None
    """Seconds for which a pod waits for the Job that pulls the weights; None for a time that is
    derived from their size.
    """


DEFAULTS = Cluster()


@dataclass(frozen=True, slots=True)
class Settings:
    """A plan and all settings from which manifests are written."""

    plan: Mapping[str, Any]
    name: str
    image: str
    volume: Volume
    model_path: str
    """Path of the model inside the volume, empty for the volume's root; an absolute path is one on
    the host.
    """
    api_key_secret: str = ""
    """Name of a Secret with the key `api-key`, which clients must send; empty if they need no API
    key.
    """
    interface: str = "eth0"
    """Network interface in the pods, for communication between ranks on several nodes."""
    rdma_devices: str = ""
    """RDMA devices for NCCL, for example `mlx5_0,mlx5_1`; empty if NCCL detects them."""
    node_selector: Mapping[str, str] | None = None
    monitor: bool = False
    """Whether to write a PodMonitor, for which the cluster needs the Prometheus operator."""
    front: Front | None = None
    scaling: Scaling | None = None
    nic_interfaces: tuple[str, ...] = ()
    """Network interfaces of the nodes' RDMA adapters, in the order of the plan's fabric
    resources.
    """
    topology: str = ""
    """Content of NCCL's topology file, for virtual machines; empty if NCCL detects the topology."""
    tiers: Mapping[str, TierConfig] | None = None
    """Penstock's KV tiers (RAM, disk or a URL) in lookup order, keyed by their `--kv-tier` text."""
    kv_volume: KvVolume = EMPTY_DIR
    """Volume of the disk tier."""
    cluster: Cluster = DEFAULTS
    ray: bool = False
    """Whether ranks are actors in a Ray cluster of KubeRay, instead of nodes of a
    LeaderWorkerSet.
    """

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
        """Number of pods (nodes) of a replica."""
        return -(-self.ranks // int(self.plan["target"]["per_node"]))

    @property
    def needs_token(self) -> bool:
        """Whether the nodes of a replica need a shared secret, which Penstock's do without Ray. Ray
        has a token of its own.
        """
        return self.engine == "penstock" and self.nodes > 1 and not self.ray

    @property
    def on_pod(self) -> int:
        """Number of ranks, and of devices, of a pod; the maximum if pods differ."""
        return -(-self.ranks // self.nodes)

    @property
    def spans(self) -> bool:
        """Whether a pipeline stage spans several pods."""
        return int(self.choice["tensor_parallel_size"]) > self.on_pod

    @property
    def most_replicas(self) -> int:
        """Maximum number of replicas: the planned ones, or what autoscaling may add up to."""
        return self.scaling.most if self.scaling else int(self.choice["replicas"])

    @property
    def has_devices(self) -> bool:
        """Whether pods request accelerators."""
        return bool(self.plan["target"]["resource"])

    @property
    def uses_rdma(self) -> bool:
        return self.nodes > 1 and bool(self.plan["target"]["fabric_resources"])

    def tier_bytes(self, kind: str) -> int:
        """Bytes of all tiers of a kind in one pod. Each pod of a replica stores the KV of its own
        ranks, so it has an equal share.
        """
        tiers = (self.tiers or {}).values()
        return -(-sum(tier.size_bytes or 0 for tier in tiers if tier.kind == kind) // self.nodes)

    @property
    def disk(self) -> str:
        """Directory of the disk tier; empty without one."""
        paths = [tier.path for tier in (self.tiers or {}).values() if tier.kind == "disk"]
        return paths[0] or "" if paths else ""

    @property
    def direct_disk(self) -> bool:
        """Whether the disk tier is read by GPUDirect Storage."""
        return any(tier.gds for tier in (self.tiers or {}).values())

    @property
    def model(self) -> str:
        """Path of the model in the pod, or on a host without pods."""
        if self.model_path.startswith("/"):
            return self.model_path
        return f"{MODELS}/{self.model_path}".rstrip("/")

    @property
    def load_seconds(self) -> int:
        """Planned seconds from a container's start until it serves: reading the weights, and
        start-up.
        """
        return int(self._start["weights"][self.volume.kind]["seconds"])

    @property
    def pull_seconds(self) -> int:
        """Planned seconds to pull image and weights on a node that has neither; 0 on hosts without
        containers.
        """
        if not self.image:
            return 0
        weights = self._start["weights"][self.volume.kind]["pull_seconds"]
        return int(self._start["image"]["seconds"]) + int(weights)

    @property
    def start_seconds(self) -> int:
        """Planned seconds from the creation of a pod until it serves. A pod that downloads the
        weights itself may take as long as it may wait for them.
        """
        downloading = self.pull_limit if self.volume.own else 0
        return self.pull_seconds + downloading + self.load_seconds

    @property
    def download_limit(self) -> int:
        """Seconds that a download of the weights may take."""
        return self.cluster.pull_timeout or PULL_BASE + self.weights // PULL_RATE

    @property
    def pull_limit(self) -> int:
        """Seconds that the deployment's download may take; 0 without one."""
        return self.download_limit if self.volume.pull else 0

    @property
    def _start(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.plan["start"]
        return found

    @property
    def weights(self) -> int:
        """Bytes of the weights of all ranks of a replica."""
        return sum(row["weights"] * len(row["ranks"]) for row in self.plan["memory"])

    def threshold(self, name: str) -> float:
        """The plan's threshold `name`: the load of a replica above which another one is needed."""
        return float(self.plan["thresholds"][name]["needed"])


def name_of(text: str) -> str:
    """A name for Kubernetes objects, derived from the model's name."""
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
