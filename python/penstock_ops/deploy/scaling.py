"""How fast autoscalers may change the number of replicas."""

from __future__ import annotations

from penstock_ops.deploy.settings import Settings

LONGEST = 1800
"""Seconds of a period that Kubernetes takes."""
CALM = 300
"""Seconds of less load before a replica goes."""


def behavior(settings: Settings) -> dict[str, object]:
    """As many again as planned in the time that one takes to load, and one fewer at a time: what
    loads has not taken its share of the queue yet.
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
