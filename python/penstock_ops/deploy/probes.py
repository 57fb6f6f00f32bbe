"""Probes and environment variables that several engines share."""

from __future__ import annotations

from penstock_ops.deploy.settings import Settings

REASONS = {
    "NCCL_SOCKET_IFNAME": "the interface of the pods' network by its whole name (=), where a plain "
    "name is a prefix",
    "NCCL_IB_HCA": "the adapters that were asked for, by their whole names (=)",
    "NCCL_TOPO_FILE": "a virtual machine hides which adapter is near which device",
    "GLOO_SOCKET_IFNAME": "what ranks agree on without devices takes the same interface",
}
"""Environment variables for communication between nodes, each with the reason why it is set."""
PERIOD = 10
UNLISTING = 5
"""Seconds that nodes and gateways may need to notice that a pod is terminating."""


def http(path: str, port: str, failures: int, period: int = PERIOD) -> dict[str, object]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def starting(settings: Settings, path: str, port: str) -> dict[str, object]:
    """A startup probe that allows twice the planned start time. Other probes begin when it has
    succeeded. If a replica has several pods, the time includes pulling the image, because a pod
    also waits for nodes that are still pulling.
    """
    seconds = settings.start_seconds if settings.nodes > 1 else settings.load_seconds
    return http(path, port, -(-2 * seconds // PERIOD))


def at_health(settings: Settings, leader: bool) -> dict[str, object]:
    """Probes of an engine whose server answers /health. Its other nodes have no probes, because
    they serve nothing.
    """
    if not leader:
        return {}
    return {
        "startupProbe": starting(settings, "/health", "http"),
        "readinessProbe": http("/health", "http", 1, 5),
        "livenessProbe": http("/health", "http", 3),
    }


def until_unlisted() -> dict[str, object]:
    """Container setting that delays termination for some seconds, because nodes stop sending
    connections only when they notice it. Requires Kubernetes 1.30.
    """
    return {"lifecycle": {"preStop": {"sleep": {"seconds": UNLISTING}}}}


def reasons(env: list[dict[str, object]]) -> str:
    """Text on one line with the reasons for those variables in `env` that REASONS has."""
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
    """Environment variables of NCCL and Gloo for ranks on several nodes; empty with one node."""
    if settings.nodes == 1:
        return []
    return [*nccl(settings), {"name": "GLOO_SOCKET_IFNAME", "value": settings.interface}]


def nccl(settings: Settings) -> list[dict[str, object]]:
    """Environment variables of NCCL. `=` before a name means exactly this name; otherwise NCCL
    would take it as a prefix. NCCL detects everything else.
    """
    found: list[dict[str, object]] = [
        {"name": "NCCL_SOCKET_IFNAME", "value": f"={settings.interface}"}
    ]
    if settings.rdma_devices:
        found.append({"name": "NCCL_IB_HCA", "value": f"={settings.rdma_devices}"})
    return found
