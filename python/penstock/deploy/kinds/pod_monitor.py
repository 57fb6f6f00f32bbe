"""PodMonitor: what the Prometheus operator scrapes."""

from __future__ import annotations

from penstock.deploy.engines import pods
from penstock.deploy.settings import Settings


def pod_monitor(settings: Settings) -> dict[str, object]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": settings.name, "labels": settings.labels()},
        "spec": {
            "selector": {"matchLabels": settings.leader()},
            "podMetricsEndpoints": [{"port": pods(settings).metrics_port, "path": "/metrics"}],
        },
    }
