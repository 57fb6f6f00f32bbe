"""StatefulSet: the replicas, if each is a single pod with claims of its own that outlive it."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.pod import template
from penstock_ops.deploy.parts import when


def stateful_set(facts: Facts) -> dict[str, object]:
    """The StatefulSet. All pods start at once, because none depends on another; a new pod takes the
    claims of the one with its number.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": facts.name, "labels": facts.labels()},
        "spec": {
            "replicas": when(facts.fixed, facts.replicas),
            "serviceName": facts.name,
            "selector": {"matchLabels": facts.selector()},
            "podManagementPolicy": "Parallel",
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "template": template(facts),
            "volumeClaimTemplates": facts.volumes.templates,
        },
    }
