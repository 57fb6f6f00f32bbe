"""PersistentVolumeClaim: the model's volume, where the deployment makes it."""

from __future__ import annotations

from penstock.deploy.settings import Settings

MARGIN = 1.25
GIB = 2**30


def claim_name(settings: Settings) -> str:
    return settings.volume.claim or f"{settings.name}-model"


def claim(settings: Settings) -> dict[str, object]:
    """A quarter more than the weights. Read by many: pods of all replicas mount it."""
    size = max(-(-int(settings.weights * MARGIN) // GIB), 1)
    spec: dict[str, object] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{size}Gi"}},
    }
    if settings.volume.storage_class:
        spec["storageClassName"] = settings.volume.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(settings), "labels": settings.labels("model")},
        "spec": spec,
    }
