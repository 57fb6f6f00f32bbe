"""How fast autoscaling may add and remove replicas."""

from __future__ import annotations

from penstock_ops.deploy.settings import Settings

LONGEST = 1800
"""Maximum period of a scaling policy in seconds, by Kubernetes' rules."""
CALM = 300
"""Seconds for which the load must be lower before a replica is removed."""


def behavior(settings: Settings) -> dict[str, object]:
    """The `behavior` of an autoscaler. Within the load time of a replica, it adds at most the
    planned number of replicas, because a loading replica does not reduce the queue yet. It removes
    one replica at a time.
    """
    period = min(settings.start_seconds, LONGEST)
    planned = int(settings.choice["replicas"])
    return {
        "scaleUp": {"policies": [{"type": "Pods", "value": planned, "periodSeconds": period}]},
        "scaleDown": {
            "stabilizationWindowSeconds": CALM,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": CALM}],
        },
    }
