"""`Facts`: the input of the functions that create Kubernetes objects. The values come from a plan
and settings, or are references into a chart's values.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_ops.deploy.devices import node_selector
from penstock_ops.deploy.engines import pods
from penstock_ops.deploy.parts import Data, Noted, Truth
from penstock_ops.deploy.probes import reasons
from penstock_ops.deploy.quoting import fields, kubernetes
from penstock_ops.deploy.resources import (
    GIB,
    container_security,
    pod_security,
    resources,
    shared_memory_limit,
    tolerations,
)
from penstock_ops.deploy.scaling import behavior
from penstock_ops.deploy.settings import (
    METRICS_PORT,
    PORT,
    TOPOLOGY,
    TOPOLOGY_FOLDER,
    Front,
    Scaling,
    Settings,
    Share,
)
from penstock_ops.deploy.volume_facts import VolumeFacts, claims_of_pods, volume_facts

INSTANCE = "app.kubernetes.io/instance"
"""Label with the deployment's name."""
MARGIN = 1.25
"""Size of a new volume claim relative to the size of the weights."""
SECONDS_OF_A_ROLLOUT = 3
"""A rollout counts as failed after this many times a pod's planned start-up time."""
LEAST_DEADLINE = 600
"""Minimum rollout deadline in seconds, which is Kubernetes' default."""


@dataclass(frozen=True, slots=True)
class Role:
    """Container properties that differ between a replica's server and its other nodes."""

    command: Data
    env: Data
    ports: Data
    startup: Data
    readiness: Data
    liveness: Data


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Properties of Services."""

    type: str
    """Type of the Service for clients."""
    server_type: str
    """Type of the Service of the serving pods: that of clients, unless a gateway serves them."""
    ip_policy: str
    server_ip_policy: str
    """IP family policy of the Service of the serving pods."""
    ip_families: Data


@dataclass(frozen=True, slots=True)
class FrontFacts:
    """Properties of the `penstock gateway` in front of the replicas."""

    image: str
    gateway_class: str
    picks: Truth
    """Whether it is the endpoint picker of a Gateway, instead of a proxy."""
    proxies: Truth
    tls_secret: str
    has_tls: Truth
    failure_mode: str
    port: Data
    plain_port: Data
    has_plain: Truth
    """Whether the Gateway has a second listener, which balances without the picker."""
    canary: Share | None
    mirror: Share | None


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    most: Data
    prometheus: str
    waiting: str
    waiting_most: str
    kv_use: str
    kv_most: str
    behavior: Data


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the functions in `kinds` need to create objects."""

    name: str
    engine: str
    image: str
    replicas: Data
    nodes: Data
    grouped: Truth
    """Whether a replica has several pods."""
    single: Truth
    """Whether a Deployment owns the pods."""
    stateful: Truth
    """Whether a StatefulSet owns the pods, because each has claims of its own that are kept."""
    workload: tuple[str, str]
    """API version and kind of the object that owns the replicas' pods."""
    restart_policy: str
    deadline: Data
    """Seconds without progress after which a rollout counts as failed."""
    server: Role
    node: Role
    variables: Data
    """Text with the reasons for environment variables for communication between nodes."""
    has_variables: Truth
    node_selector: Data
    tolerations: Data
    resources: Data
    pod_security: Data
    container_security: Data
    shared_memory: str
    disk: str
    """Directory of the disk tier in the pods; empty without one."""
    has_disk: Truth
    model: str
    """The model's path in the pods, quoted as a word of a command."""
    claim: str
    host_path: str
    on_host: Truth
    volume_image: str
    """Reference of the image that contains the weights; empty if they are in another volume."""
    in_image: Truth
    pull: str
    pulls: Truth
    volumes: VolumeFacts
    compiles: Truth
    """Whether pods compile Triton kernels, which Penstock does on accelerators."""
    keeps_kernels: Truth
    """Whether pods store compiled kernels in the claim, beside the weights."""
    claim_is_read: Truth
    """Whether pods only read the claim."""
    storage: str
    storage_class: str
    metrics_port: str
    metrics_number: str
    scraped: Truth
    """Whether pods have the annotations by which Prometheus finds them without an operator."""
    is_annotated: Truth
    """Whether a serving pod has annotations."""
    monitoring: str
    """Namespace whose pods may read metrics."""
    pull_secrets: Data
    """References to Secrets with credentials of the image registries."""
    service: ServiceFacts
    own_metrics: Truth
    """Whether the server has a separate port for Prometheus."""
    shares_port: Truth
    """Whether metrics have the port of the API."""
    topology: Data
    """Content of NCCL's topology file; empty if NCCL detects the topology."""
    has_topology: Truth
    monitored: Truth
    api_key_secret: str
    has_key: Truth
    fixed: Truth
    """Whether the number of replicas is fixed by the plan; False with autoscaling."""
    by_keda: Truth
    by_metrics: Truth
    scaling: ScalingFacts | None
    fronted: Truth
    direct: Truth
    """Whether clients connect to the serving pods, because there is no gateway."""
    proxied: Truth
    picked: Truth
    balanced: Truth
    """Whether a Gateway's second listener balances without the picker."""
    front_monitored: Truth
    front: FrontFacts | None

    @property
    def gateway(self) -> str:
        """Name of the objects that run `penstock gateway`."""
        return f"{self.name}-gateway"

    def labels(self, role: str = "server") -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "penstock" if role == "gateway" else self.engine,
            INSTANCE: self.name,
            "app.kubernetes.io/component": role,
            "app.kubernetes.io/managed-by": "penstock-deploy",
        }

    def selector(self, role: str = "server") -> dict[str, str]:
        """Labels that select the pods with this role: `server` for serving pods, `gateway` for the
        gateway's. A replica's other nodes have another role, so they are not selected.
        """
        return {
            INSTANCE: self.name,
            "app.kubernetes.io/component": role,
        }


def facts(settings: Settings) -> Facts:
    """The facts for a plan and its settings. PenstockError if there are no manifests for the
    engine.
    """
    engine, volume, grouped = pods(settings), settings.volume, settings.nodes > 1
    scaled, front = settings.scaling is not None, settings.front
    server, node = (_role(settings, leader) for leader in (True, False))
    variables = reasons(server.env)
    storage = f"{max(-(-int(settings.weights * MARGIN) // GIB), 1)}Gi"
    stateful = not grouped and bool(claims_of_pods(settings, storage))
    compiles = settings.engine == "penstock" and settings.has_devices
    by_keda = bool(settings.scaling and settings.scaling.prometheus)
    return Facts(
        name=settings.name,
        engine=settings.engine,
        image=settings.image,
        replicas=int(settings.choice["replicas"]),
        nodes=settings.nodes,
        grouped=grouped,
        single=not (grouped or stateful),
        stateful=stateful,
        workload=_workload(grouped, stateful),
        restart_policy=engine.restart_policy,
        deadline=rollout_seconds(settings) + settings.pull_limit,
        server=server,
        node=node,
        variables=variables,
        has_variables=bool(variables),
        node_selector=node_selector(settings),
        tolerations=tolerations(settings),
        resources=resources(settings),
        pod_security=pod_security(settings),
        container_security=container_security(settings),
        shared_memory=shared_memory_limit(settings),
        disk=settings.disk,
        has_disk=bool(settings.disk),
        model=kubernetes(settings.model),
        claim=volume.claim or f"{settings.name}-model",
        host_path=volume.host_path,
        on_host=bool(volume.host_path),
        volume_image=volume.image,
        in_image=bool(volume.image),
        pull=volume.pull,
        pulls=bool(volume.pull),
        volumes=volume_facts(settings, storage),
        compiles=compiles,
        keeps_kernels=(keeps := bool(volume.pull) and compiles),
        claim_is_read=not keeps,
        storage=storage,
        storage_class=volume.storage_class,
        metrics_port=engine.metrics_port,
        metrics_number=str(METRICS_PORT if engine.metrics_port == "metrics" else PORT),
        scraped=settings.cluster.scrape,
        is_annotated=bool(variables) or settings.cluster.scrape,
        monitoring=settings.cluster.monitoring,
        pull_secrets=[{"name": name} for name in settings.cluster.pull_secrets],
        service=_service(settings),
        own_metrics=engine.metrics_port == "metrics",
        shares_port=engine.metrics_port != "metrics",
        topology=settings.topology,
        has_topology=bool(settings.topology),
        monitored=settings.monitor,
        api_key_secret=settings.api_key_secret,
        has_key=bool(settings.api_key_secret),
        fixed=not scaled,
        by_keda=by_keda,
        by_metrics=scaled and not by_keda,
        scaling=_scaling(settings, settings.scaling) if settings.scaling else None,
        fronted=front is not None,
        direct=front is None,
        proxied=front is not None and not front.gateway_class,
        picked=front is not None and bool(front.gateway_class),
        balanced=front is not None and front.plain_port is not None,
        front_monitored=front is not None and settings.monitor,
        front=_front(front) if front else None,
    )


def _workload(grouped: bool, stateful: bool) -> tuple[str, str]:
    if grouped:
        return "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
    return "apps/v1", "StatefulSet" if stateful else "Deployment"


def rollout_seconds(settings: Settings) -> int:
    """Seconds without progress after which a rollout counts as failed, without a download of the
    weights.
    """
    start = settings.pull_seconds + settings.load_seconds
    return max(SECONDS_OF_A_ROLLOUT * start, LEAST_DEADLINE)


def _role(settings: Settings, leader: bool) -> Role:
    engine = pods(settings)
    words = engine.command(settings, leader)
    env = [*engine.environment(settings, leader), *fields(words)]
    if settings.topology:
        path = f"{TOPOLOGY_FOLDER}/{TOPOLOGY}"
        env = [*env, {"name": "NCCL_TOPO_FILE", "value": path}]
    env = [
        {**entry, "value": kubernetes(str(entry["value"]))} if "value" in entry else entry
        for entry in env
    ]
    ports: list[dict[str, object]] = [{"name": "http", "containerPort": PORT}]
    if engine.metrics_port == "metrics":
        ports.append({"name": "metrics", "containerPort": METRICS_PORT})
    probes = engine.probes(settings, leader)
    return Role(
        command=list(map(kubernetes, words)),
        env=env,
        ports=ports if leader else [],
        startup=probes.get("startupProbe", {}),
        readiness=probes.get("readinessProbe", {}),
        liveness=probes.get("livenessProbe", {}),
    )


def _scaling(settings: Settings, scaling: Scaling) -> ScalingFacts:
    engine = pods(settings)
    return ScalingFacts(
        most=scaling.most,
        prometheus=scaling.prometheus,
        waiting=engine.waiting,
        waiting_most=_threshold(settings, "requests_waiting"),
        kv_use=engine.kv_use,
        kv_most=_threshold(settings, "kv_use"),
        behavior=behavior(settings),
    )


def _threshold(settings: Settings, name: str) -> str:
    """A threshold of the plan, with its formula as a comment."""
    text = f"{settings.threshold(name):g}"
    formula = settings.plan["thresholds"][name].get("formula")
    return Noted.by(text, f"{name}: {formula}") if isinstance(formula, str) else text


def _front(front: Front) -> FrontFacts:
    return FrontFacts(
        image=front.image,
        gateway_class=front.gateway_class,
        picks=bool(front.gateway_class),
        proxies=not front.gateway_class,
        tls_secret=front.tls_secret,
        has_tls=bool(front.tls_secret),
        failure_mode=front.failure_mode,
        port=front.port,
        plain_port=front.plain_port or 0,
        has_plain=front.plain_port is not None,
        canary=front.canary,
        mirror=front.mirror,
    )


def _service(settings: Settings) -> ServiceFacts:
    cluster = settings.cluster
    both = cluster.ip_family == "dual"
    policy = "PreferDualStack" if both else "SingleStack"
    return ServiceFacts(
        type=cluster.service_type,
        server_type="ClusterIP" if settings.front else cluster.service_type,
        ip_policy=policy,
        server_ip_policy=policy if pods(settings).both_families else "SingleStack",
        ip_families=[] if both else [cluster.ip_family],
    )
