"""Probes and variables shared by engines."""

from __future__ import annotations

from penstock_ops.deploy.settings import Settings

REASONS = {
    "NCCL_SOCKET_IFNAME": "the interface of the pods' network by its whole name (=), where a plain "
    "name is a prefix",
    "NCCL_IB_HCA": "the adapters that were asked for, by their whole names (=)",
    "NCCL_TOPO_FILE": "a virtual machine hides which adapter is near which device",
    "GLOO_SOCKET_IFNAME": "what ranks agree on without devices takes the same interface",
}
"""Variables between nodes, and why they are set."""
PERIOD = 10
UNLISTING = 5
"""Seconds for nodes and gateways to learn that a pod is terminating."""


def http(path: str, port: str, failures: int, period: int = PERIOD) -> dict[str, object]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def starting(settings: Settings, path: str, port: str) -> dict[str, object]:
    """A startup probe of twice the planned start time. Other probes begin when it has succeeded. In
    a group it also covers waiting for other nodes, which may still pull the image.
    """
    seconds = settings.start_seconds if settings.nodes > 1 else settings.load_seconds
    return http(path, port, -(-2 * seconds // PERIOD))


def at_health(settings: Settings, leader: bool) -> dict[str, object]:
    """Probes of a server with /health. Its other nodes serve nothing that could be probed."""
    if not leader:
        return {}
    return {
        "startupProbe": starting(settings, "/health", "http"),
        "readinessProbe": http("/health", "http", 1, 5),
        "livenessProbe": http("/health", "http", 3),
    }


def until_unlisted() -> dict[str, object]:
    """Keep accepting connections for some seconds after termination begins, because nodes learn of
    it at the same time as the pod. Requires Kubernetes 1.30.
    """
    return {"lifecycle": {"preStop": {"sleep": {"seconds": UNLISTING}}}}


def reasons(env: list[dict[str, object]]) -> str:
    """Reasons for the variables that are set, on one line."""
    return "; ".join(
        f"{name}: {why}"
        for name, why in REASONS.items()
        if any(entry["name"] == name for entry in env)
    )


def secret(name: str, from_secret: str, key: str) -> dict[str, object]:
    return {
        "name": name,
        "valueFrom": {"secretKeyRef": {"name": from_secret, "key": key}},
    }


def between_nodes(settings: Settings) -> list[dict[str, object]]:
    """Variables of NCCL and Gloo for ranks on several nodes."""
    if settings.nodes == 1:
        return []
    return [*nccl(settings), {"name": "GLOO_SOCKET_IFNAME", "value": settings.interface}]


def nccl(settings: Settings) -> list[dict[str, object]]:
    """Variables of NCCL. `=` requires an exact interface name; otherwise the name would be a
    prefix. NCCL detects everything else.
    """
    found: list[dict[str, object]] = [
        {"name": "NCCL_SOCKET_IFNAME", "value": f"={settings.interface}"}
    ]
    if settings.rdma_devices:
        found.append({"name": "NCCL_IB_HCA", "value": f"={settings.rdma_devices}"})
    return found
