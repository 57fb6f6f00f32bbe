"""The pod template of a replica's server and of its other nodes."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.placement import apart, scraped
from penstock_ops.deploy.kinds.topology import topology_name
from penstock_ops.deploy.kinds.weights import download, wait
from penstock_ops.deploy.parts import optional, when
from penstock_ops.deploy.probes import UNLISTING, until_unlisted
from penstock_ops.deploy.settings import KERNEL_CACHE, KERNELS, MODELS, SHUTDOWN, TOPOLOGY_FOLDER

VARIABLES = "penstock/variables"
"""Annotation with the reasons for variables for communication between nodes. It is no YAML comment,
because clusters do not keep comments.
"""


UDEV = "/run/udev"
UDEV_VOLUME = {"name": "udev", "hostPath": {"path": UDEV, "type": "Directory"}}
UDEV_MOUNT = {"name": "udev", "mountPath": UDEV, "readOnly": True}


def template(facts: Facts, leader: bool = True) -> dict[str, object]:
    """The pod template (metadata and spec) for the objects that create pods."""
    role = "server" if leader else "node"
    return {
        "metadata": {
            "labels": facts.labels(role),
            "annotations": _annotations(facts, leader),
        },
        "spec": spec(facts, leader),
    }


def _annotations(facts: Facts, leader: bool) -> object:
    """Annotations of a pod; only the leader has metrics."""
    if not leader:
        return when(facts.has_variables, {VARIABLES: facts.variables})
    variables = {VARIABLES: when(facts.has_variables, facts.variables)}
    return when(facts.is_annotated, {**variables, **scraped(facts, facts.metrics_number)})


def spec(facts: Facts, leader: bool) -> dict[str, object]:
    return {
        # Without this, Kubernetes would set a variable for each Service. Such a name could collide
        # with one of the engine's variables.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": UNLISTING + SHUTDOWN + 10,
        "imagePullSecrets": optional(facts.pull_secrets),
        "securityContext": facts.pod_security,
        "nodeSelector": optional(facts.node_selector),
        "tolerations": optional(facts.tolerations),
        "topologySpreadConstraints": apart(facts, ["server", "node"]),
        "initContainers": when(
            facts.pulls,
            [
                when(facts.volumes.by_job, wait(facts)),
                when(facts.volumes.by_pod, download(facts)),
            ],
        ),
        "containers": [container(facts, leader)],
        "volumes": [
            when(facts.volumes.lists_model, _model_volume(facts)),
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": facts.shared_memory}},
            when(facts.volumes.mounts_kv, facts.volumes.kv),
            when(facts.volumes.reads_devices, UDEV_VOLUME),
            when(
                facts.has_topology,
                {"name": "topology", "configMap": {"name": topology_name(facts.name)}},
            ),
        ],
    }


def container(facts: Facts, leader: bool) -> dict[str, object]:
    role = facts.server if leader else facts.node
    return {
        "name": "engine",
        "image": facts.image,
        "command": role.command,
        "env": optional(role.env),
        "ports": optional(role.ports),
        "resources": facts.resources,
        "startupProbe": optional(role.startup),
        "readinessProbe": optional(role.readiness),
        "livenessProbe": optional(role.liveness),
        **(until_unlisted() if leader else {}),
        "securityContext": facts.container_security,
        "volumeMounts": [
            {"name": "model", "mountPath": MODELS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            when(
                facts.keeps_kernels,
                {"name": "model", "mountPath": KERNEL_CACHE, "subPath": KERNELS},
            ),
            {"name": "shm", "mountPath": "/dev/shm"},
            when(facts.has_disk, {"name": "kv", "mountPath": facts.disk}),
            when(facts.volumes.reads_devices, UDEV_MOUNT),
            when(
                facts.has_topology,
                {"name": "topology", "mountPath": TOPOLOGY_FOLDER, "readOnly": True},
            ),
        ],
    }


def _model_volume(facts: Facts) -> dict[str, object]:
    claim = {"claimName": facts.claim, "readOnly": when(facts.claim_is_read, True)}
    return {
        "name": "model",
        "image": when(facts.in_image, {"reference": facts.volume_image}),
        "hostPath": when(facts.on_host, {"path": facts.host_path, "type": "Directory"}),
        "persistentVolumeClaim": when(facts.volumes.mounts_claim, claim),
        "ephemeral": when(
            facts.volumes.is_ephemeral,
            {"volumeClaimTemplate": {"spec": facts.volumes.own_claim}},
        ),
    }
