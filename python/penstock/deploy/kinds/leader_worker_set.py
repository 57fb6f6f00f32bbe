"""LeaderWorkerSet: replicas of several pods each. The leader is node 0 and serves."""

from __future__ import annotations

from penstock.deploy.engines import pods
from penstock.deploy.kinds.pod import template
from penstock.deploy.settings import Settings


def leader_worker_set(settings: Settings) -> dict[str, object]:
    """All pods of a group start at once: the leader is ready when the others are there."""
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": settings.name, "labels": settings.labels()},
        "spec": {
            "replicas": settings.choice["replicas"],
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "leaderWorkerTemplate": {
                "size": settings.nodes,
                "restartPolicy": pods(settings).restart_policy,
                "leaderTemplate": template(settings, leader=True),
                "workerTemplate": template(settings, leader=False),
            },
        },
    }
