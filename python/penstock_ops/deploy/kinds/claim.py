"""PersistentVolumeClaim: the volumes that the deployment creates for all its pods."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.persistent_volume import volume_name
from penstock_ops.deploy.parts import Data, optional
from penstock_ops.deploy.volume_facts import bound_to, kv_name


def claim(facts: Facts) -> dict[str, object]:
    """The claim with the weights, 25% larger than them. The pods of all replicas mount it."""
    spec: dict[str, object] = {
        "accessModes": [facts.volumes.mode],
        "resources": {"requests": {"storage": facts.storage}},
        "storageClassName": optional(facts.storage_class),
    }
    if facts.volumes.nfs:
        spec |= bound_to(volume_name(facts))
    return _claim(facts, facts.claim, spec, "model")


def kv_claim(facts: Facts) -> dict[str, object]:
    """The claim with the disk tier, which all pods share."""
    return _claim(facts, kv_name(facts.name), facts.volumes.kv_claim, "kv")


def _claim(facts: Facts, name: str, spec: Data, role: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": facts.labels(role)},
        "spec": spec,
    }
