"""`VolumeFacts`: what the functions in `kinds` need to know about claims and volumes."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_ops.deploy.parts import Data, Truth
from penstock_ops.deploy.resources import disk_limit
from penstock_ops.deploy.settings import Settings
from penstock_ops.deploy.volumes import (
    EPHEMERAL,
    KEPT,
    ONE_NODE,
    READ_ONLY,
    SHARED,
    Nfs,
    claim_source,
    claim_spec,
    templates_of,
)

MODEL, KV = "model", "kv"
"""Names of the volumes in pods, and ends of the names of claims."""


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """Claims and volumes of a deployment."""

    mode: str
    """Access mode of the claim with the weights."""
    makes_claim: Truth
    """Whether the deployment creates that claim."""
    mounts_claim: Truth
    """Whether the pods mount that claim, instead of claims of their own."""
    lists_model: Truth
    """Whether pods list the volume with the weights; False if it is one of `templates`."""
    by_job: Truth
    """Whether a Job downloads the weights."""
    by_pod: Truth
    """Whether each pod downloads the weights to its own claim."""
    download_limit: str
    """Seconds that a download of the weights may take."""
    own_claim: Data
    """Spec of the claim with the weights that lasts as long as its pod."""
    is_ephemeral: Truth
    """Whether `own_claim` is used."""
    templates: Data
    """`volumeClaimTemplates` of the workload."""
    has_templates: Truth
    kv: Data
    """Volume of the disk tier, with its name."""
    mounts_kv: Truth
    """Whether pods list that volume; False if it is one of `templates`."""
    kv_claim: Data
    """Spec of a new claim for the disk tier of all pods."""
    makes_kv_claim: Truth
    reads_devices: Truth
    """Whether pods need the node's /run/udev, in which GPUDirect Storage looks disks up."""
    nfs: Nfs | None
    """Directory with the weights, which the claim is bound to."""
    kv_nfs: Nfs | None
    kv_size: str


def volume_facts(settings: Settings, storage: str) -> VolumeFacts:
    """The facts for the settings. `storage` is the size of a claim with the weights."""
    volume, kv = settings.volume, settings.kv_volume
    templates = templates_of(claims_of_pods(settings, storage))
    has_disk = bool(settings.disk)
    makes_kv_claim = has_disk and (kv.shared or kv.nfs is not None)
    kept = kv.own == KEPT
    return VolumeFacts(
        mode=volume.mode or (SHARED if volume.pull or not volume.nfs else READ_ONLY),
        makes_claim=bool(volume.pull and not volume.own) or volume.nfs is not None,
        mounts_claim=not (volume.own or volume.host_path or volume.image),
        lists_model=volume.own != KEPT,
        by_job=bool(volume.pull and not volume.own),
        by_pod=bool(volume.pull and volume.own),
        download_limit=str(settings.download_limit),
        own_claim=_own_claim(settings, storage),
        is_ephemeral=volume.own == EPHEMERAL,
        templates=templates,
        has_templates=bool(templates),
        kv={"name": KV, **_kv_source(settings)} if has_disk and not kept else {},
        mounts_kv=has_disk and not kept,
        kv_claim=_new_kv_claim(settings) if makes_kv_claim else {},
        makes_kv_claim=makes_kv_claim,
        reads_devices=settings.direct_disk,
        nfs=volume.nfs,
        kv_nfs=kv.nfs if has_disk else None,
        kv_size=disk_limit(settings, whole=True),
    )


def claims_of_pods(settings: Settings, storage: str) -> list[tuple[str, dict[str, object]]]:
    """Names and specs of the claims that each pod has for itself, and that outlive it."""
    found = []
    if settings.volume.own == KEPT:
        found.append((MODEL, _own_claim(settings, storage)))
    if settings.disk and settings.kv_volume.own == KEPT:
        found.append((KV, _own_kv_claim(settings)))
    return found


def _own_claim(settings: Settings, storage: str) -> dict[str, object]:
    return claim_spec(ONE_NODE, storage, settings.volume.storage_class)


def _own_kv_claim(settings: Settings) -> dict[str, object]:
    return claim_spec(ONE_NODE, disk_limit(settings), settings.kv_volume.storage_class)


def _new_kv_claim(settings: Settings) -> dict[str, object]:
    """Spec of a claim that all pods mount. They share its chunks, so it has the tier's whole
    size.
    """
    size = disk_limit(settings, whole=True)
    spec = claim_spec(SHARED, size, settings.kv_volume.storage_class)
    return spec | (bound_to(kv_name(settings.name)) if settings.kv_volume.nfs else {})


def bound_to(volume: str) -> dict[str, object]:
    """Fields of a claim for the PersistentVolume of this name. The empty class keeps a provisioner
    from creating another one.
    """
    return {"storageClassName": "", "volumeName": volume}


def kv_name(name: str) -> str:
    """Name of the claim of the disk tier, and of its PersistentVolume."""
    return f"{name}-{KV}"


def _kv_source(settings: Settings) -> dict[str, object]:
    kv = settings.kv_volume
    if kv.host_path:
        return {"hostPath": {"path": kv.host_path, "type": "Directory"}}
    if kv.claim or kv.shared or kv.nfs:
        return dict(claim_source(kv.claim or kv_name(settings.name)))
    if kv.own == EPHEMERAL:
        return {"ephemeral": {"volumeClaimTemplate": {"spec": _own_kv_claim(settings)}}}
    return {"emptyDir": {"sizeLimit": disk_limit(settings)}}
