"""Deployment: the replicas, if each is a single pod."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.pod import template
from penstock_ops.deploy.parts import when


def deployment(facts: Facts) -> dict[str, object]:
    """The Deployment. A rollout needs no spare devices, because a pod ends before its successor
    starts.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": facts.name, "labels": facts.labels()},
        "spec": {
            "replicas": when(facts.fixed, facts.replicas),
            "selector": {"matchLabels": facts.selector()},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "progressDeadlineSeconds": facts.deadline,
            "template": template(facts),
        },
    }
