"""Probes and variables that engines share."""

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
"""Seconds in which nodes and gateways learn that a pod ends."""


def http(path: str, port: str, failures: int, period: int = PERIOD) -> dict[str, object]:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def starting(settings: Settings, path: str, port: str) -> dict[str, object]:
    """A startup probe of twice the planned load time; the others begin when it has passed. In a
    group it waits for other nodes, too, which may pull the image while this one runs.
    """
    seconds = settings.start_seconds if settings.nodes > 1 else settings.load_seconds
    return http(path, port, -(-2 * seconds // PERIOD))


def at_health(settings: Settings, leader: bool) -> dict[str, object]:
    """Probes of a server that answers at /health; its other nodes serve nothing that could be
    asked.
    """
    if not leader:
        return {}
    return {
        "startupProbe": starting(settings, "/health", "http"),
        "readinessProbe": http("/health", "http", 1, 5),
        "livenessProbe": http("/health", "http", 3),
    }


def until_unlisted() -> dict[str, object]:
    """Let a pod that ends take connections for some seconds more: it learns of its end at the time
    when nodes learn to send nothing there. Kubernetes 1.30 and later.
    """
    return {"lifecycle": {"preStop": {"sleep": {"seconds": UNLISTING}}}}


def reasons(env: list[dict[str, object]]) -> str:
    """Why each of the variables is set; one line."""
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
    """The interface by its whole name, where a plain name is a prefix. All else NCCL finds
    itself.
    """
    found: list[dict[str, object]] = [
        {"name": "NCCL_SOCKET_IFNAME", "value": f"={settings.interface}"}
    ]
    if settings.rdma_devices:
        found.append({"name": "NCCL_IB_HCA", "value": f"={settings.rdma_devices}"})
    return found
