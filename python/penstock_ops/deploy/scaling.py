"""Rate limits of autoscaling."""

from __future__ import annotations

from penstock_ops.deploy.settings import Settings

LONGEST = 1800
"""Maximum policy period in Kubernetes, in seconds."""
CALM = 300
"""Seconds of reduced load before a replica is removed."""


def behavior(settings: Settings) -> dict[str, object]:
    """Scale up by at most the planned number of replicas within one replica's load time, because a
    loading replica has not taken its share of the queue yet. Scale down one at a time.
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
