"""Lint rules for volumes and claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_ops.deploy.objects import mapping, mappings, pods_of
from penstock_ops.deploy.rules import Finding

Objects = Sequence[Mapping[str, Any]]
WORKLOADS = ("Deployment", "LeaderWorkerSet", "StatefulSet")
SHARED = {"ReadWriteMany", "ReadOnlyMany"}


def claim(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Finds a claim that one node mounts alone, but whose pods may be on several; and a claim that
    is only read, but that a Job fills.
    """
    modes = mapping(data.get("spec")).get("accessModes")
    if not isinstance(modes, list):
        return
    name, shown = mapping(data.get("metadata")).get("name"), ", ".join(map(str, modes))
    users = [each for each in every if name in _claims(each)]
    jobs = [each for each in users if each.get("kind") == "Job"]
    if set(map(str, modes)) == {"ReadOnlyMany"} and jobs:
        yield Finding("claim", "error", f"{shown}: the Job that fills it cannot write")
    if SHARED & set(map(str, modes)):
        return
    workloads = [each for each in users if each.get("kind") in WORKLOADS]
    if any(map(_has_several, workloads)):
        yield Finding("claim", "error", f"{shown}: pods are on many nodes")
    elif jobs and workloads:
        text = f"{shown}: the Job's pod and the server's may be on two nodes"
        yield Finding("claim", "error", text)


def _has_several(data: Mapping[str, Any]) -> bool:
    count = mapping(data.get("spec")).get("replicas", 1)
    return data.get("kind") == "LeaderWorkerSet" or (isinstance(count, int) and count > 1)


def _claims(data: Mapping[str, Any]) -> set[object]:
    """Names of the claims that an object's pods mount."""
    volumes = [v for pod in pods_of(data) for v in mappings(pod.spec.get("volumes"))]
    claims = [mapping(volume.get("persistentVolumeClaim")) for volume in volumes]
    return {each.get("claimName") for each in claims if each.get("claimName")}


def waits(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Finds servers that may start before a Job has filled their claim."""
    filled = {name for each in every if each.get("kind") == "Job" for name in _claims(each)}
    unfilled = filled & _claims(data)
    if unfilled and not any(pod.spec.get("initContainers") for pod in pods_of(data)):
        text = f"no init container waits for the Job that fills {', '.join(map(str, unfilled))}"
        yield Finding("wait", "warning", text)


def volume(data: Mapping[str, Any], every: Objects) -> Iterator[Finding]:
    """Finds NFS mounts whose writes may be lost without an error."""
    spec = mapping(data.get("spec"))
    options = spec.get("mountOptions")
    listed = list(map(str, options)) if isinstance(options, list) else []
    modes = spec.get("accessModes")
    writes = isinstance(modes, list) and any("Write" in str(mode) for mode in modes)
    if spec.get("nfs") and writes and "soft" in listed:
        text = "NFS mounted soft: a write that times out leaves a damaged file; hard"
        yield Finding("nfs", "error", text)
