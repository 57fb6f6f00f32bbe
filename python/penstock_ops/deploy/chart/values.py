"""A chart's values.yaml, filled with a plan's choice and the settings, and its JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_ops.deploy.facts import Facts, Role, facts, rollout_seconds
from penstock_ops.deploy.settings import Front, Scaling, Settings
from penstock_ops.deploy.volumes import EPHEMERAL, KEPT, MODES

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
            "accessMode": known.volumes.mode,
            "perPod": settings.volume.own,
            "perPodClaim": known.volumes.own_claim,
            "pullTimeout": known.volumes.download_limit,
        },
        "claimTemplates": known.volumes.templates,
        "kernels": known.compiles,
        "resources": known.resources,
        "sharedMemory": known.shared_memory,
        "kvDisk": {
            "path": known.disk,
            "volume": known.volumes.kv,
            "newClaim": known.volumes.kv_claim,
            "udev": known.volumes.reads_devices,
        },
        "nodeSelector": known.node_selector,
        "tolerations": known.tolerations,
        "podSecurityContext": known.pod_security,
        "securityContext": known.container_security,
        "restartPolicy": known.restart_policy,
        "progressDeadlineSeconds": rollout_seconds(settings),
        "topology": known.topology,
        "apiKeySecret": known.api_key_secret,
        "metricsPort": known.metrics_port,
        "podMonitor": known.monitored,
        "scrapeAnnotations": known.scraped,
        "monitoringNamespace": known.monitoring,
        "imagePullSecrets": known.pull_secrets,
        "service": {
            "type": known.service.type,
            "ipFamilyPolicy": known.service.ip_policy,
            "serverIpFamilyPolicy": known.service.server_ip_policy,
            "ipFamilies": known.service.ip_families,
        },
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
        "failureMode": front.failure_mode,
        "listener": front.port,
        "plainListener": front.plain_port,
    }


COMMENTS: Mapping[str, str] = {
    "image": "The engine's, best with its digest.",
    "replicas": "Servers of the model; with autoscaling the fewest.",
    "nodes": "Pods of a replica: with more than 1 it is a LeaderWorkerSet.",
    "engine": "penstock, vllm or sglang; a label.",
    "server": "The container that serves, of a group its leader's.",
    "node": "The container of a group's other pods.",
    "variables": "Why variables between nodes are set; an annotation of their pods.",
    "model": "One of claim, hostPath (of every node), image (with the weights), pull (ORG/NAME, "
    "for which pods wait pullTimeout seconds).",
    "kernels": "Whether pods compile kernels, and keep them in the claim that pull makes.",
    "claimTemplates": "Claims that each pod has for itself: then the replicas are a StatefulSet.",
    "resources": "Devices and fabric of a pod; or its memory.",
    "sharedMemory": "Size of /dev/shm.",
    "kvDisk": "Volume of the disk tier that the command has; a new claim that all pods share.",
    "nodeSelector": "Labels of the nodes.",
    "tolerations": "Taints of the nodes that do not matter.",
    "podSecurityContext": "Of every pod that runs the engine.",
    "securityContext": "Of its container.",
    "restartPolicy": "Of a LeaderWorkerSet, when a pod of a group ends.",
    "progressDeadlineSeconds": "After which a rollout without progress counts as failed; with "
    "model.pull, pullTimeout later.",
    "topology": "NCCL's topology file, for virtual machines.",
    "apiKeySecret": "A Secret whose key api-key clients must send; the engine reads it by its env.",
    "metricsPort": "Name of the port that Prometheus scrapes.",
    "podMonitor": "Whether the cluster has the Prometheus operator.",
    "scrapeAnnotations": "Whether pods have the annotations prometheus.io/scrape, port and path.",
    "monitoringNamespace": "Whose pods may read metrics.",
    "imagePullSecrets": "Credentials of the registries, as [{name: SECRET}].",
    "service": "Of clients its type; of the server's pods the families that the engine accepts.",
    "autoscaling": "maxReplicas 0: none; with the address of a Prometheus KEDA's.",
    "gateway": "penstock gateway before the replicas; with className the picker of a Gateway.",
}

TEXT: Schema = {"type": "string"}
SOME: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {"type": "object"}
TRUTH: Schema = {"type": "boolean"}
NUMBER_TEXT: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}
LISTENER: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
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
        "claimTemplates": {"type": "array", "items": _open("metadata", "spec")},
        "kvDisk": _object({"path": TEXT, "volume": ANY, "newClaim": ANY, "udev": TRUTH}),
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
        "scrapeAnnotations": TRUTH,
        "monitoringNamespace": SOME,
        "imagePullSecrets": {"type": "array", "items": _open("name")},
        "service": _service(),
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
                "failureMode": {"enum": ["FailClose", "FailOpen"]},
                "listener": LISTENER,
                "plainListener": {**LISTENER, "minimum": 0},
            }
        ),
        "if": {"properties": {"enabled": {"const": True}}},
        "then": {"properties": {"image": {"minLength": 1}}},
    }


def _service() -> Schema:
    policy = {"enum": ["SingleStack", "PreferDualStack", "RequireDualStack"]}
    return _object(
        {
            "type": {"enum": ["ClusterIP", "LoadBalancer", "NodePort"]},
            "ipFamilyPolicy": policy,
            "serverIpFamilyPolicy": policy,
            "ipFamilies": {"type": "array", "items": {"enum": ["IPv4", "IPv6"]}},
        }
    )


def _open(*keys: str) -> Schema:
    return {"type": "object", "required": list(keys)}


def _model() -> Schema:
    sources = ("claim", "hostPath", "image", "pull")
    texts = dict.fromkeys(("path", *sources, "storageClass"), TEXT)
    return {
        **_object(
            {
                **texts,
                "storage": SIZE,
                "accessMode": {"enum": [*MODES.values()]},
                "perPod": {"enum": ["", KEPT, EPHEMERAL]},
                "perPodClaim": ANY,
                "pullTimeout": {"type": "string", "pattern": "^[0-9]+$"},
            }
        ),
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
