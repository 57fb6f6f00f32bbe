"""NetworkPolicy: who may connect to the pods."""

from __future__ import annotations

from penstock.deploy.engines import pods
from penstock.deploy.settings import METRICS_PORT, PORT, Settings


def network_policy(settings: Settings) -> dict[str, object]:
    """Everybody to the ports that serve; the pods of the deployment to each other on any port,
    because ranks and stages choose theirs. What leaves the pods is not limited.
    """
    own = {"app.kubernetes.io/instance": settings.name}
    ports = [{"port": PORT, "protocol": "TCP"}]
    if pods(settings).metrics_port == "metrics":
        ports.append({"port": METRICS_PORT, "protocol": "TCP"})
    rules: list[dict[str, object]] = [{"ports": ports}]
    if settings.nodes > 1:
        rules.append({"from": [{"podSelector": {"matchLabels": own}}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": settings.name, "labels": settings.labels()},
        "spec": {
            "podSelector": {"matchLabels": own},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }
