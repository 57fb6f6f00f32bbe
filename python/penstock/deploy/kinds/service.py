"""Service: one address before the pods that serve."""

from __future__ import annotations

from penstock.deploy.settings import PORT, Settings


def service(settings: Settings) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": settings.name, "labels": settings.labels()},
        "spec": {
            "type": "ClusterIP",
            "selector": settings.leader(),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
