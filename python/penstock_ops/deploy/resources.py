"""Resources and permissions of a pod: devices, memory, shared memory, security context."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_ops.deploy.engines import pods
from penstock_ops.deploy.settings import Settings

USER = 65532
"""User id that Penstock's image runs as. It owns no files in the image."""
MIB, GIB = 2**20, 2**30
RAY_STORE = 128 * MIB
"""Bytes of shared memory for Ray's object store on a node: its minimum plus a margin."""
RAY_MEMORY = GIB
"""Bytes of memory for Ray's own processes on a node."""
HEADROOM = 1.1
"""A pod's memory relative to the memory that the plan estimates."""
RANK_SHARED = GIB
"""Bytes of shared memory for each rank with a device, for NCCL and for queues between processes."""
PROCESS_MEMORY = 4 * GIB
"""Bytes of host memory that a pod with devices requests for its server and for each rank: Python,
the device's libraries, and pinned buffers. It is a rule of ours, above what such processes take."""
SERVER_CPUS = 2
"""CPUs that a pod with devices requests besides one for each rank: one for its API server and one
for its scheduler, whose threads run all the time under load."""


def resources(settings: Settings) -> dict[str, object]:
    """Resource limits and requests of a pod. With devices: the devices and network adapters, and
    requests for the CPUs and memory that their processes need, without a limit, because files in
    the page cache count as a pod's memory. Without devices: memory and CPUs.
    """
    if settings.has_devices:
        limits: dict[str, object] = {settings.plan["target"]["resource"]: str(settings.on_pod)}
        if settings.uses_rdma:
            fabric = settings.plan["target"]["fabric_resources"]
            limits |= {name: str(count) for name, count in fabric.items()}
        used = PROCESS_MEMORY * (settings.on_pod + 1) + shared_memory(settings)
        used += settings.tier_bytes("ram") + (RAY_STORE + RAY_MEMORY if settings.ray else 0)
        host = {"cpu": str(settings.on_pod + SERVER_CPUS), "memory": f"{used // MIB}Mi"}
        return {"limits": limits, "requests": {**limits, **host}}
    size = f"{memory(settings)}Mi"
    return {"limits": {"memory": size}, "requests": {"memory": size, "cpu": "1"}}


def memory(settings: Settings) -> int:
    """Memory in MiB of a pod without devices: its ranks' memory, plus its share of a RAM tier."""
    rows = settings.plan["memory"]
    used = sum(_needed(row) * len(row["ranks"]) for row in rows)
    used += settings.nodes * (RAY_STORE + RAY_MEMORY) if settings.ray else 0
    return int(-(-used // settings.nodes // MIB) + settings.tier_bytes("ram") // MIB)


def _needed(row: Mapping[str, int]) -> int:
    """Bytes of memory for a rank. If the plan leaves out KV memory that its load does not need, 10%
    is added.
    """
    used = row["total"] - row["kept_free"]
    return int((used - row["left"]) * HEADROOM) if row.get("left") else used


def tolerations(settings: Settings) -> list[dict[str, object]]:
    if not settings.has_devices:
        return []
    resource = settings.plan["target"]["resource"]
    return [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]


def shared_memory(settings: Settings) -> int:
    """Bytes of /dev/shm, which count as memory of the pod. On CPUs: the ranks' shared memory by the
    plan plus 25%, and 64 MiB. With devices: one GiB for each rank.
    """
    if settings.has_devices:
        return settings.on_pod * RANK_SHARED
    row = max(settings.plan["memory"], key=lambda row: int(row.get("shared_memory", 0)))
    return 64 * MIB + int(1.25 * settings.on_pod * int(row.get("shared_memory", 0)))


def shared_memory_size(settings: Settings) -> str:
    """Bytes of /dev/shm as a size of Docker Compose: MiB are `m`, GiB are `g`."""
    mib = -(-shared_memory(settings) // MIB)
    return f"{mib}m" if mib % 1024 else f"{mib // 1024}g"


def shared_memory_limit(settings: Settings) -> str:
    shared = shared_memory(settings) + (RAY_STORE if settings.ray else 0)
    return f"{shared // MIB}Mi"


def disk_limit(settings: Settings, *, whole: bool = False) -> str:
    """Size of a pod's disk tier as a Kubernetes quantity, or of the whole tier of a replica: 1/8
    more than the tier, for writes while the tier is full.
    """
    size = settings.tier_bytes("disk") * (settings.nodes if whole else 1)
    return f"{size * 9 // 8 // MIB}Mi"


def restricted_pod() -> dict[str, object]:
    """Security context of a pod whose image runs as USER."""
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {**user, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted() -> dict[str, object]:
    """Security context of the containers of such a pod."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod_security(settings: Settings) -> dict[str, object]:
    if pods(settings).root:
        return {"seccompProfile": {"type": "RuntimeDefault"}}
    return restricted_pod()


def container_security(settings: Settings) -> dict[str, object]:
    """Security context of the engine's container: Kubernetes' "restricted" profile. With RDMA, it
    also has the capability to pin memory, which even the "baseline" profile forbids.
    """
    capabilities: dict[str, object] = {"drop": ["ALL"]}
    if settings.uses_rdma:
        capabilities["add"] = ["IPC_LOCK"]
    found: dict[str, object] = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
    if not pods(settings).root:
        found["readOnlyRootFilesystem"] = True
    return found
