"""Lint rules for where pods run, and for what the cluster and its monitoring know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock_ops.deploy.names import OBJECT_FORM, is_object_name
from penstock_ops.deploy.objects import Pod, mapping, mappings
from penstock_ops.deploy.rules import GPU, Finding, tiers_in, words_of

SCRAPE = "prometheus.io/"
UDEV = "/run/udev"
SOURCES = (
    ("claim", "persistentVolumeClaim", "claimName"),
    ("Secret", "secret", "secretName"),
    ("ConfigMap", "configMap", "name"),
)
"""Volume sources that name an object: its kind, the source, the member with the name."""


def requests(pod: Pod) -> Iterator[Finding]:
    """Finds containers with devices that request no CPUs or memory."""
    for container in pod.containers:
        resources = mapping(container.get("resources"))
        limits = mapping(resources.get("limits"))
        asked = {**limits, **mapping(resources.get("requests"))}
        missing = [name for name in ("cpu", "memory") if name not in asked]
        if any(GPU.search(name) for name in limits) and missing:
            text = f"no request for {', '.join(missing)}: the node may have none left for the ranks"
            yield Finding("requests", "warning", text)


def device_nodes(pod: Pod) -> Iterator[Finding]:
    """Finds pods with NVIDIA's devices that any node with such devices may run. Other vendors have
    no label that all their nodes have.
    """
    affinity = mapping(mapping(pod.spec.get("affinity")).get("nodeAffinity"))
    if pod.spec.get("nodeSelector") or affinity or pod.spec.get("nodeName"):
        return
    for container in pod.containers:
        for name in mapping(mapping(container.get("resources")).get("limits")):
            if name == "nvidia.com/gpu":
                text = f"no nodeSelector: any node with {name} will do, whatever device it has"
                yield Finding("device-nodes", "warning", text)


def scrape_annotations(pod: Pod) -> Iterator[Finding]:
    """Finds annotations by which Prometheus asks a port that no container has."""
    ports = {
        str(port.get("containerPort"))
        for container in pod.containers
        for port in mappings(container.get("ports"))
    }
    for name, value in pod.annotations.items():
        if not str(name).startswith(SCRAPE):
            continue
        if not isinstance(value, str):
            yield Finding("scrape", "error", f"{name}: {value!r} is not a text: quote it")
        elif name == f"{SCRAPE}port" and value not in ports:
            yield Finding("scrape", "error", f"{name}: no container has the port {value}")


def pull_secrets(pod: Pod) -> Iterator[Finding]:
    listed = pod.spec.get("imagePullSecrets")
    for entry in listed if isinstance(listed, list) else []:
        if not mapping(entry).get("name"):
            yield Finding("pull-secret", "error", f"imagePullSecrets: {entry!r} has no name")


def references(pod: Pod) -> Iterator[Finding]:
    """Finds names of claims, Secrets and ConfigMaps that no object can have: the API server accepts
    the references, and the pod waits for them.
    """
    for kind, name in _referenced(pod):
        if isinstance(name, str) and not is_object_name(name):
            yield Finding("name", "error", f"{kind} {name}: no object has this name: {OBJECT_FORM}")


def _referenced(pod: Pod) -> Iterator[tuple[str, object]]:
    """Kinds and names of the objects that a pod refers to."""
    for volume in mappings(pod.spec.get("volumes")):
        for kind, source, key in SOURCES:
            yield kind, mapping(volume.get(source)).get(key)
    for container in pod.containers:
        for entry in mappings(container.get("env")):
            origin = mapping(entry.get("valueFrom"))
            yield "Secret", mapping(origin.get("secretKeyRef")).get("name")
            yield "ConfigMap", mapping(origin.get("configMapKeyRef")).get("name")
    for entry in mappings(pod.spec.get("imagePullSecrets")):
        yield "Secret", entry.get("name")


def host_paths(pod: Pod) -> Iterator[Finding]:
    """Finds directories of the host that the kubelet creates as root, for pods of another user."""
    user = mapping(pod.spec.get("securityContext")).get("runAsUser", 0)
    made = {
        volume.get("name"): mapping(volume["hostPath"])
        for volume in mappings(pod.spec.get("volumes"))
        if mapping(volume.get("hostPath")).get("type") == "DirectoryOrCreate"
    }
    for container in pod.containers:
        for mount in mappings(container.get("volumeMounts")):
            if user and mount.get("name") in made and mount.get("readOnly") is not True:
                path = made[mount.get("name")].get("path")
                text = f"{path}: DirectoryOrCreate makes it as root, and uid {user} cannot write"
                yield Finding("host-path", "error", text)


def direct_storage(pod: Pod) -> Iterator[Finding]:
    """Finds GPUDirect Storage without the files by which it recognises disks."""
    for container in pod.containers:
        words = words_of(container)
        direct = any(tier.gds for tier in tiers_in(words))
        paths = [mount.get("mountPath") for mount in mappings(container.get("volumeMounts"))]
        if direct and UDEV not in paths:
            text = f"gds=true without {UDEV}: disks are not recognised, and reads are copied"
            yield Finding("gds", "warning", text)


def spread(data: Mapping[str, Any], pods: list[Pod]) -> Iterator[Finding]:
    """Finds several replicas that may all be on one node."""
    count = mapping(data.get("spec")).get("replicas", 1)
    if not isinstance(count, int) or count < 2:
        return
    for pod in pods[:1]:
        anti = mapping(pod.spec.get("affinity")).get("podAntiAffinity")
        if not anti and not pod.spec.get("topologySpreadConstraints"):
            text = f"{count} replicas may be on one node: topologySpreadConstraints spread them"
            yield Finding("spread", "warning", text)
