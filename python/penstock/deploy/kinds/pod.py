"""The pod of a server, or of another node of its group."""

from __future__ import annotations

from penstock.deploy.engines import Pods, pods
from penstock.deploy.engines.penstock import SHUTDOWN
from penstock.deploy.kinds.claim import claim_name
from penstock.deploy.settings import METRICS_PORT, MODELS, PORT, Settings

USER = 65532
"""The image's user; owns nothing in it."""
MIB, GIB = 2**20, 2**30
RANK_SHARED = GIB
"""Shared memory of a rank of a torch engine: NCCL, and the queues of its processes."""


def template(settings: Settings, leader: bool = True) -> dict[str, object]:
    """Metadata and spec, as workloads embed them."""
    role = "server" if leader else "node"
    return {
        "metadata": {"labels": settings.labels(role)},
        "spec": spec(settings, leader),
    }


def spec(settings: Settings, leader: bool) -> dict[str, object]:
    engine = pods(settings)
    found: dict[str, object] = {
        # A Service named like a program would put its address into variables that it reads.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": SHUTDOWN + 10,
        "securityContext": _pod_security(engine),
    }
    if settings.node_selector:
        found["nodeSelector"] = dict(settings.node_selector)
    if settings.has_devices:
        resource = settings.plan["target"]["resource"]
        found["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    found["containers"] = [container(settings, engine, leader)]
    found["volumes"] = [
        _model_volume(settings),
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_memory(settings) // MIB}Mi"},
        },
    ]
    return found


def container(settings: Settings, engine: Pods, leader: bool) -> dict[str, object]:
    found: dict[str, object] = {
        "name": "engine",
        "image": settings.image,
        "command": engine.command(settings, leader),
    }
    environment = engine.environment(settings, leader)
    if environment:
        found["env"] = environment
    if leader:
        ports: list[dict[str, object]] = [{"name": "http", "containerPort": PORT}]
        if engine.metrics_port == "metrics":
            ports.append({"name": "metrics", "containerPort": METRICS_PORT})
        found["ports"] = ports
    found["resources"] = resources(settings)
    found |= engine.probes(settings, leader)
    found["securityContext"] = _security(settings, engine)
    found["volumeMounts"] = [
        {"name": "model", "mountPath": MODELS, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    return found


def resources(settings: Settings) -> dict[str, object]:
    """Devices and fabric of a pod; here, memory and processors by the plan."""
    if settings.has_devices:
        limits: dict[str, object] = {settings.plan["target"]["resource"]: str(settings.on_pod)}
        if settings.uses_rdma:
            fabric = settings.plan["target"]["fabric_resources"]
            limits |= {name: str(count) for name, count in fabric.items()}
        return {"limits": limits, "requests": dict(limits)}
    rows = settings.plan["memory"]
    used = sum((row["total"] - row["kept_free"]) * len(row["ranks"]) for row in rows)
    size = f"{-(-used // settings.nodes // MIB)}Mi"
    return {"limits": {"memory": size}, "requests": {"memory": size, "cpu": "1"}}


def shared_memory(settings: Settings) -> int:
    """Bytes of /dev/shm, which count as memory of the pod: of Penstock what its ranks share and a
    quarter, of others a GiB for each rank.
    """
    if settings.engine != "penstock":
        return settings.on_pod * RANK_SHARED
    row = max(settings.plan["memory"], key=lambda row: int(row.get("shared_memory", 0)))
    return 64 * MIB + int(1.25 * settings.on_pod * int(row.get("shared_memory", 0)))


def _model_volume(settings: Settings) -> dict[str, object]:
    if settings.volume.host_path:
        path = {"path": settings.volume.host_path, "type": "Directory"}
        return {"name": "model", "hostPath": path}
    claim = {"claimName": claim_name(settings), "readOnly": True}
    return {"name": "model", "persistentVolumeClaim": claim}


def _pod_security(engine: Pods) -> dict[str, object]:
    seccomp: dict[str, object] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if engine.root:
        return seccomp
    return {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER, **seccomp}


def _security(settings: Settings, engine: Pods) -> dict[str, object]:
    """As "restricted" wants it. RDMA pins memory, which even "baseline" does not allow."""
    capabilities: dict[str, object] = {"drop": ["ALL"]}
    if settings.uses_rdma:
        capabilities["add"] = ["IPC_LOCK"]
    found: dict[str, object] = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
    if not engine.root:
        found["readOnlyRootFilesystem"] = True
    return found
