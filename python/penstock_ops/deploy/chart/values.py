"""A chart's values.yaml, filled with a plan's choice and the settings, and its JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_ops.deploy.facts import Facts, Role, facts
from penstock_ops.deploy.settings import Front, Scaling, Settings

Schema = dict[str, Any]


def values(settings: Settings) -> dict[str, Any]:
    """The chart's values, nested as `places` refers to them. Features that are disabled have
    values, too, so that a user can enable them.
    """
    given = replace(
        settings,
        scaling=settings.scaling or Scaling(0),
        front=settings.front or Front(settings.image if settings.engine == "penstock" else ""),
    )
    known = facts(given)
    return {
        "image": known.image,
        "replicas": known.replicas,
        "nodes": known.nodes,
        "engine": known.engine,
        "server": _role(known.server),
        "node": _role(known.node),
        "variables": known.variables,
        "model": {
            "path": known.model,
            "claim": settings.volume.claim,
            "hostPath": known.host_path,
            "image": known.volume_image,
            "pull": known.pull,
            "storage": known.storage,
            "storageClass": known.storage_class,
        },
        "kernels": known.compiles,
        "resources": known.resources,
        "sharedMemory": known.shared_memory,
        "kvDisk": {"path": known.disk, "size": known.disk_size},
        "nodeSelector": known.node_selector,
        "tolerations": known.tolerations,
        "podSecurityContext": known.pod_security,
        "securityContext": known.container_security,
        "restartPolicy": known.restart_policy,
        "progressDeadlineSeconds": known.deadline,
        "topology": known.topology,
        "apiKeySecret": known.api_key_secret,
        "metricsPort": known.metrics_port,
        "podMonitor": known.monitored,
        "autoscaling": _scaling(known),
        "gateway": _gateway(known, settings),
    }


def _role(role: Role) -> dict[str, Any]:
    return {
        "command": role.command,
        "env": role.env,
        "ports": role.ports,
        "startupProbe": role.startup,
        "readinessProbe": role.readiness,
        "livenessProbe": role.liveness,
    }


def _scaling(known: Facts) -> dict[str, Any]:
    scaling = known.scaling
    assert scaling is not None
    return {
        "maxReplicas": scaling.most,
        "prometheus": scaling.prometheus,
        "waiting": {"metric": scaling.waiting, "threshold": scaling.waiting_most},
        "kvUse": {"metric": scaling.kv_use, "threshold": scaling.kv_most},
        "behavior": scaling.behavior,
    }


def _gateway(known: Facts, settings: Settings) -> dict[str, Any]:
    front = known.front
    assert front is not None
    objectives = (settings.front.objectives if settings.front else None) or {}
    return {
        "enabled": settings.front is not None,
        "className": front.gateway_class,
        "image": front.image,
        "tlsSecret": front.tls_secret,
        "objectives": dict(objectives),
    }


COMMENTS: Mapping[str, str] = {
    "image": "The engine's, best with its digest.",
    "replicas": "Servers of the model; with autoscaling the fewest.",
    "nodes": "Pods of a replica: with more than 1 it is a LeaderWorkerSet.",
    "engine": "penstock, vllm or sglang; a label.",
    "server": "The container that serves, of a group its leader's.",
    "node": "The container of a group's other pods.",
    "variables": "Why variables between nodes are set; an annotation of their pods.",
    "model": "One of claim, hostPath (of every node), image (with the weights), pull (ORG/NAME).",
    "kernels": "Whether pods compile kernels, and keep them in the claim that pull makes.",
    "resources": "Devices and fabric of a pod; or its memory.",
    "sharedMemory": "Size of /dev/shm.",
    "kvDisk": "Volume of the disk tier that the command has.",
    "nodeSelector": "Labels of the nodes.",
    "tolerations": "Taints of the nodes that do not matter.",
    "podSecurityContext": "Of every pod that runs the engine.",
    "securityContext": "Of its container.",
    "restartPolicy": "Of a LeaderWorkerSet, when a pod of a group ends.",
    "progressDeadlineSeconds": "After which a rollout counts as failed.",
    "topology": "NCCL's topology file, for virtual machines.",
    "apiKeySecret": "A Secret whose key api-key clients must send; the engine reads it by its env.",
    "metricsPort": "Name of the port that Prometheus scrapes.",
    "podMonitor": "Whether the cluster has the Prometheus operator.",
    "autoscaling": "maxReplicas 0: none; with the address of a Prometheus KEDA's.",
    "gateway": "penstock gateway before the replicas; with className the picker of a Gateway.",
}

TEXT: Schema = {"type": "string"}
SOME: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {"type": "object"}
TRUTH: Schema = {"type": "boolean"}
NUMBER_TEXT: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}
SIZE: Schema = {"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi|Ti)$"}


def schema() -> Schema:
    """JSON Schema of the values, which helm validates before rendering."""
    role = _object(
        {
            "command": {"type": "array", "items": TEXT},
            "env": {"type": "array", "items": _open("name")},
            "ports": {"type": "array", "items": _open("name", "containerPort")},
            "startupProbe": ANY,
            "readinessProbe": ANY,
            "livenessProbe": ANY,
        }
    )
    metric = _object({"metric": SOME, "threshold": NUMBER_TEXT})
    rows: dict[str, Schema] = {
        "image": SOME,
        "replicas": {"type": "integer", "minimum": 1},
        "nodes": {"type": "integer", "minimum": 1},
        "engine": {"enum": ["penstock", "vllm", "sglang"]},
        "server": role,
        "node": role,
        "variables": TEXT,
        "model": _model(),
        "kernels": TRUTH,
        "resources": _object({"limits": ANY, "requests": ANY}, required=False),
        "sharedMemory": SIZE,
        "kvDisk": _object({"path": TEXT, "size": SIZE}),
        "nodeSelector": {"type": "object", "additionalProperties": TEXT},
        "tolerations": {"type": "array", "items": ANY},
        "podSecurityContext": ANY,
        "securityContext": ANY,
        "restartPolicy": {"enum": ["None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"]},
        "progressDeadlineSeconds": COUNT,
        "topology": TEXT,
        "apiKeySecret": TEXT,
        "metricsPort": {"enum": ["http", "metrics"]},
        "podMonitor": TRUTH,
        "autoscaling": _object(
            {
                "maxReplicas": COUNT,
                "prometheus": TEXT,
                "waiting": metric,
                "kvUse": metric,
                "behavior": ANY,
            }
        ),
        "gateway": _gateway_schema(),
    }
    described = {key: {"description": COMMENTS[key], **row} for key, row in rows.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_object({**described, "global": ANY}, optional=("global",)),
    }


def _object(properties: Schema, *, required: bool = True, optional: tuple[str, ...] = ()) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        found["required"] = [key for key in properties if key not in optional]
    return found


def _gateway_schema() -> Schema:
    return {
        **_object(
            {
                "enabled": TRUTH,
                "className": TEXT,
                "image": TEXT,
                "tlsSecret": TEXT,
                "objectives": {"type": "object", "additionalProperties": {"type": "integer"}},
            }
        ),
        "if": {"properties": {"enabled": {"const": True}}},
        "then": {"properties": {"image": {"minLength": 1}}},
    }


def _open(*keys: str) -> Schema:
    return {"type": "object", "required": list(keys)}


def _model() -> Schema:
    sources = ("claim", "hostPath", "image", "pull")
    texts = dict.fromkeys(("path", *sources, "storageClass"), TEXT)
    return {
        **_object({**texts, "storage": SIZE}),
        "oneOf": [
            {
                "properties": {
                    each: {"minLength": 1} if each == given else {"maxLength": 0}
                    for each in sources
                }
            }
            for given in sources
        ],
    }
