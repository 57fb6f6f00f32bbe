"""Deployment: replicas of one pod each."""

from __future__ import annotations

from penstock.deploy.kinds.pod import template
from penstock.deploy.settings import Settings


def deployment(settings: Settings) -> dict[str, object]:
    """A rollout that needs no further devices: a pod ends before its successor starts."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": settings.name, "labels": settings.labels()},
        "spec": {
            "replicas": settings.choice["replicas"],
            "selector": {"matchLabels": settings.leader()},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "progressDeadlineSeconds": 3 * settings.load_seconds,
            "template": template(settings),
        },
    }
