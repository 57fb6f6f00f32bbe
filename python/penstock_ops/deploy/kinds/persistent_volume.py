"""PersistentVolume: a directory of an NFS server, because only such an object can have mount
options.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.volume_facts import kv_name
from penstock_ops.deploy.volumes import SHARED, Nfs


def volume_name(facts: Facts) -> str:
    """Name of the PersistentVolume with the weights."""
    return f"{facts.name}-model"


def persistent_volume(facts: Facts) -> dict[str, object]:
    """The volume with the weights."""
    assert facts.volumes.nfs is not None
    name, mode = volume_name(facts), facts.volumes.mode
    return _volume(facts, name, facts.volumes.nfs, facts.storage, mode, "model")


def kv_persistent_volume(facts: Facts) -> dict[str, object]:
    """The volume with the disk tier."""
    assert facts.volumes.kv_nfs is not None
    name, size = kv_name(facts.name), facts.volumes.kv_size
    return _volume(facts, name, facts.volumes.kv_nfs, size, SHARED, "kv")


def _volume(
    facts: Facts, name: str, nfs: Nfs, size: str, mode: str, role: str
) -> dict[str, object]:
    """The volume. Its size is not enforced by NFS; a claim only matches it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": facts.labels(role)},
        "spec": {
            "accessModes": [mode],
            "capacity": {"storage": size},
            # The server's files outlive the claim.
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": list(nfs.options),
            "nfs": {"server": nfs.server, "path": nfs.path},
        },
    }
