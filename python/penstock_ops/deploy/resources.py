"""What a pod may use: devices, memory, shared memory, and rights."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_ops.deploy.engines import pods
from penstock_ops.deploy.settings import Settings

USER = 65532
"""The image's user; owns nothing in it."""
MIB, GIB = 2**20, 2**30
RAY_STORE = 128 * MIB
"""Shared memory of Ray's object store, the least that it takes and some more."""
RAY_MEMORY = GIB
"""Ray's own processes."""
HEADROOM = 1.1
"""Memory of a pod over what its plan counts."""
RANK_SHARED = GIB
"""Shared memory of a rank with a device: NCCL, and the queues of its process."""


def resources(settings: Settings) -> dict[str, object]:
    """Devices and fabric of a pod; here, memory and processors by the plan."""
    if settings.has_devices:
        limits: dict[str, object] = {settings.plan["target"]["resource"]: str(settings.on_pod)}
        if settings.uses_rdma:
            fabric = settings.plan["target"]["fabric_resources"]
            limits |= {name: str(count) for name, count in fabric.items()}
        return {"limits": limits, "requests": dict(limits)}
    size = f"{memory(settings)}Mi"
    return {"limits": {"memory": size}, "requests": {"memory": size, "cpu": "1"}}


def memory(settings: Settings) -> int:
    """MiB of a pod without devices: what its ranks need by the plan, and its part of a RAM tier."""
    rows = settings.plan["memory"]
    used = sum(_needed(row) * len(row["ranks"]) for row in rows)
    used += settings.nodes * (RAY_STORE + RAY_MEMORY) if settings.ray else 0
    return int(-(-used // settings.nodes // MIB) + settings.tier_bytes("ram") // MIB)


def _needed(row: Mapping[str, int]) -> int:
    """Bytes of a rank. Without the KV that the plan's load does not need, a tenth more."""
    used = row["total"] - row["kept_free"]
    return int((used - row["left"]) * HEADROOM) if row.get("left") else used


def tolerations(settings: Settings) -> list[dict[str, object]]:
    if not settings.has_devices:
        return []
    resource = settings.plan["target"]["resource"]
    return [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]


def shared_memory(settings: Settings) -> int:
    """Bytes of /dev/shm, which count as memory of the pod: on processors what the ranks share and
    a quarter, with devices a GiB for each rank.
    """
    if settings.has_devices:
        return settings.on_pod * RANK_SHARED
    row = max(settings.plan["memory"], key=lambda row: int(row.get("shared_memory", 0)))
    return 64 * MIB + int(1.25 * settings.on_pod * int(row.get("shared_memory", 0)))


def shared_memory_limit(settings: Settings) -> str:
    shared = shared_memory(settings) + (RAY_STORE if settings.ray else 0)
    return f"{shared // MIB}Mi"


def disk_limit(settings: Settings) -> str:
    """Size of the volume of the disk tier: an eighth more, for what is written while it is full."""
    return f"{settings.tier_bytes('disk') * 9 // 8 // MIB}Mi"


def restricted_pod() -> dict[str, object]:
    """Security context of a pod whose image has USER."""
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {**user, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted() -> dict[str, object]:
    """Security context of its containers."""
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
    """As "restricted" wants it. RDMA pins memory, which even "baseline" does not allow."""
    capabilities: dict[str, object] = {"drop": ["ALL"]}
    if settings.uses_rdma:
        capabilities["add"] = ["IPC_LOCK"]
    found: dict[str, object] = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
    if not pods(settings).root:
        found["readOnlyRootFilesystem"] = True
    return found
