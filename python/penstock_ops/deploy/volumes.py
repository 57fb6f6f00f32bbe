"""Volumes of a deployment: where pods get the weights, and where their disk tier is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.names import OBJECT_FORM, is_object_name

MODES = {"RWO": "ReadWriteOnce", "RWX": "ReadWriteMany", "ROX": "ReadOnlyMany"}
"""Access modes of claims by their usual abbreviations."""
ONE_NODE = "ReadWriteOnce"
READ_ONLY = "ReadOnlyMany"
SHARED = "ReadWriteMany"
KEPT, EPHEMERAL = "kept", "ephemeral"
"""How long a pod's own claim lasts: until someone deletes it, or as long as its pod."""
NFS_OPTIONS = "nfsvers=4.1,nconnect=8,rsize=1048576,wsize=1048576,hard,noatime"
"""Mount options of NFS over TCP. `hard` repeats an operation until the server answers."""
NFS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):(/\S*)")
PLACES = (
    "emptydir, claim, claim:NAME, claim-per-pod, claim-per-pod:ephemeral, nfs:SERVER:/PATH or "
    "hostpath:/DIR"
)


@dataclass(frozen=True, slots=True)
class Nfs:
    """A directory that an NFS server exports."""

    server: str
    path: str
    options: tuple[str, ...]
    """Mount options of the PersistentVolume; pods themselves have none for NFS."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Where the pods get the weights: from a claim, a directory on each node, NFS, or an image. A
    new claim, or the directory on NFS, is filled by a download (`pull`).
    """

    claim: str = ""
    host_path: str = ""
    pull: str = ""
    """`org/name` of the model on the hub, which is downloaded to the claim."""
    storage_class: str = ""
    image: str = ""
    """Reference of an OCI image or artifact with the weights, best with its digest."""
    nfs: Nfs | None = None
    mode: str = ""
    """Access mode of the claim, a value of MODES; empty if it is unknown, or the default."""
    own: str = ""
    """KEPT or EPHEMERAL if each pod has a claim of its own, which it fills itself; else empty."""

    @property
    def kind(self) -> str:
        """Key of this kind of volume in the plan's start-up times. Without Kubernetes it is a
        directory (`host_path`).
        """
        if self.image:
            return "image"
        return "claim" if self.claim or self.pull or self.nfs else "host_path"


@dataclass(frozen=True, slots=True)
class KvVolume:
    """Volume of the disk tier. Without any of these fields it is an emptyDir, which starts empty
    with each pod.
    """

    claim: str = ""
    """Name of an existing claim."""
    shared: bool = False
    """Whether a new claim is created, which all pods mount."""
    own: str = ""
    """KEPT or EPHEMERAL if each pod has a claim of its own; else empty."""
    nfs: Nfs | None = None
    host_path: str = ""
    storage_class: str = ""


EMPTY_DIR = KvVolume()


def nfs_of(flag: str, text: str, options: str) -> Nfs:
    """The directory `SERVER:/PATH`, with mount options separated by commas."""
    found = NFS.fullmatch(text)
    if not found:
        raise InvalidValueError(flag, text, "SERVER:/PATH, an IPv6 address in brackets")
    given = tuple(filter(None, (options or NFS_OPTIONS).split(",")))
    return Nfs(found[1].strip("[]"), found[2], given)


def kv_volume_of(text: str, storage_class: str, options: str) -> KvVolume:
    """The volume that `--kv-volume` names."""
    flag = "--kv-volume"
    kind, colon, value = text.partition(":")
    if kind == "nfs" and colon:
        nfs = nfs_of(flag, value, options)
        if "soft" in nfs.options:
            raise PenstockError(
                "--mount-options: with soft, a write that times out leaves a damaged file: hard"
            )
        return KvVolume(nfs=nfs)
    if kind == "hostpath" and value.startswith("/"):
        return KvVolume(host_path=value)
    if kind == "claim" and colon:
        if not is_object_name(value):
            raise InvalidValueError(flag, text, OBJECT_FORM)
        return KvVolume(claim=value)
    places = {
        "emptydir": EMPTY_DIR,
        "claim": KvVolume(shared=True, storage_class=storage_class),
        "claim-per-pod": KvVolume(own=KEPT, storage_class=storage_class),
        "claim-per-pod:ephemeral": KvVolume(own=EPHEMERAL, storage_class=storage_class),
    }
    if text not in places:
        raise InvalidValueError(flag, text, PLACES)
    return places[text]


def check_volume(volume: Volume, pods: int) -> None:
    """Raise PenstockError for a volume that `pods` pods on several nodes cannot mount, or that
    nobody can fill.
    """
    sources = (volume.claim, volume.host_path, volume.image, volume.pull or volume.nfs)
    if sum(map(bool, sources)) != 1:
        raise PenstockError(
            "where is the model? give one of --claim, --host-path, --image-volume, --pull, --nfs"
        )
    if volume.own:
        _check_own(volume)
        return
    if volume.mode == READ_ONLY and volume.pull:
        raise PenstockError(
            "--access-mode ROX: the Job of --pull cannot write to this claim. Fill one with RWX, "
            "and give it, or a copy of its snapshot, by --claim NAME --access-mode ROX"
        )
    writer = int(bool(volume.pull))
    if volume.mode == ONE_NODE and pods + writer > 1:
        also = ", and the Job that fills it," if writer else ""
        raise PenstockError(
            f"--access-mode RWO: a node mounts this claim alone, but {pods} pods{also} may be on "
            "several. Use --pull with --claim-per-pod, or a storage class that has RWX (a file "
            "system such as NFS or CephFS)"
        )


def _check_own(volume: Volume) -> None:
    if not volume.pull or volume.nfs:
        raise PenstockError("--claim-per-pod: each pod fills its own claim, by --pull ORG/NAME")
    if volume.mode not in ("", ONE_NODE):
        raise PenstockError("--claim-per-pod: one pod mounts a claim, so its --access-mode is RWO")


def claim_spec(mode: str, size: str, storage_class: str) -> dict[str, object]:
    """Spec of a PersistentVolumeClaim; an empty class is the cluster's default."""
    found: dict[str, object] = {
        "accessModes": [mode],
        "resources": {"requests": {"storage": size}},
    }
    return found | ({"storageClassName": storage_class} if storage_class else {})


def claim_source(name: str, *, read_only: bool = False) -> Mapping[str, object]:
    """Volume source of a pod that mounts a claim."""
    source: dict[str, object] = {"claimName": name}
    return {"persistentVolumeClaim": source | ({"readOnly": True} if read_only else {})}


def templates_of(claims: Sequence[tuple[str, Mapping[str, object]]]) -> list[dict[str, object]]:
    """Items of `volumeClaimTemplates`, from names and specs."""
    return [{"metadata": {"name": name}, "spec": dict(spec)} for name, spec in claims]
