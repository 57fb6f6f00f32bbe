"""PersistentVolumeClaim: the model's volume, if the deployment creates it."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.parts import optional


def claim(facts: Facts) -> dict[str, object]:
    """The claim. It is 25% larger than the weights, and ReadWriteMany, because the pods of all
    replicas mount it.
    """
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": facts.claim, "labels": facts.labels("model")},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": facts.storage}},
            "storageClassName": optional(facts.storage_class),
        },
    }
