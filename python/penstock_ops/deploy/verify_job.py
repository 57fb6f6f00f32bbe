"""`penstock deploy verify PLAN`: a Job that runs `penstock verify` with one pod for each node of a
replica, without ssh and privileges. The first pod's log has the result as JSON, and its exit status
is the Job's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock_ops.deploy.devices import node_selector
from penstock_ops.deploy.kubernetes import Manifests, write
from penstock_ops.deploy.names import check_names
from penstock_ops.deploy.plan_file import read_plan
from penstock_ops.deploy.pod_flags import pair_of
from penstock_ops.deploy.resources import (
    resources,
    restricted,
    restricted_pod,
    shared_memory_limit,
    tolerations,
)
from penstock_ops.deploy.settings import MASTER_PORT, MODELS, Settings, checked_name, name_of
from penstock_ops.deploy.volumes import Volume, claim_source

PLAN, TOKEN = "/etc/penstock/plan", "/etc/penstock/token"
"""Directories in the pods."""
SECONDS = 3600
"""Time limit of the Job, with pulls of the image."""
KEPT_SECONDS = 86400
"""Seconds that a finished Job and its logs are kept."""


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a Job that checks the nodes of a replica and what is between them: a pod on each, "
        "no ssh, nothing privileged. The log of its first pod is the result as JSON."
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    parser.add_argument("--image", required=True, help="of Penstock, best with its digest")
    parser.add_argument("--name", help="of the deployment; default: from the model's")
    parser.add_argument(
        "--claim", default="", metavar="NAME", help="a claim that has the weights, to measure it"
    )
    parser.add_argument(
        "--node-selector",
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="label that nodes must have; repeatable",
    )
    parser.set_defaults(command=run_verify)


def run_verify(parsed: argparse.Namespace) -> int:
    """Write the objects; print their file names and what they require."""
    check_names(parsed)
    plan = read_plan(parsed.plan)
    name = checked_name("--name", parsed.name or name_of(plan["model"]["name"]))
    selector = dict(pair_of("--node-selector", text) for text in parsed.node_selector)
    settings = Settings(
        plan=plan,
        name=name,
        image=parsed.image,
        volume=Volume(claim=parsed.claim),
        model_path="",
        node_selector=selector,
    )
    text = parsed.plan.read_text(encoding="utf-8")
    for path in write(verification(settings, text), parsed.output):
        print(path)
    if settings.nodes > 1:
        print(
            f"note: needs a secret: kubectl create secret generic {name}-verify "
            "--from-literal token=$(openssl rand -hex 32)"
        )
    print(f"note: kubectl logs -f job/{name}-verify has the result of one pod, the first")
    return 0


def verification(settings: Settings, plan: str) -> Manifests:
    """The objects by file name. `plan` is the plan file's text."""
    name = f"{settings.name}-verify"
    metadata = {"name": name, "labels": _labels(settings)}
    found: Manifests = {
        "verify-plan.yaml": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"plan.yaml": plan},
        }
    }
    if settings.nodes > 1:
        found["verify-service.yaml"] = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": "None",
                # Pods look the first one up before any of them is ready.
                "publishNotReadyAddresses": True,
                "selector": _labels(settings),
                "ports": [{"name": "master", "port": MASTER_PORT, "protocol": "TCP"}],
            },
        }
    found["verify-job.yaml"] = _job(settings, metadata)
    return found


def _labels(settings: Settings) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/instance": f"{settings.name}-verify",
        "app.kubernetes.io/component": "verify",
        "app.kubernetes.io/managed-by": "penstock-deploy",
    }


def _job(settings: Settings, metadata: Mapping[str, Any]) -> dict[str, object]:
    nodes = settings.nodes
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": nodes,
            "parallelism": nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": _labels(settings)}, "spec": _pod(settings)},
        },
    }


def _pod(settings: Settings) -> dict[str, object]:
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": restricted_pod(),
        "containers": [_container(settings)],
        "volumes": _volumes(settings),
    }
    if settings.nodes > 1:
        spec["subdomain"] = f"{settings.name}-verify"
        apart = {
            "labelSelector": {"matchLabels": _labels(settings)},
            "topologyKey": "kubernetes.io/hostname",
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        spec["affinity"] = {"podAntiAffinity": required}
    if selector := node_selector(settings):
        spec["nodeSelector"] = selector
    if tolerated := tolerations(settings):
        spec["tolerations"] = tolerated
    return spec


def _container(settings: Settings) -> dict[str, object]:
    security = restricted()
    if settings.uses_rdma:
        security["capabilities"] = {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    mounts: list[dict[str, object]] = [
        {"name": "plan", "mountPath": PLAN, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if settings.nodes > 1:
        mounts.append({"name": "token", "mountPath": TOKEN, "readOnly": True})
    if settings.volume.claim:
        mounts.append({"name": "model", "mountPath": MODELS, "readOnly": True})
    return {
        "name": "verify",
        "image": settings.image,
        "command": _words(settings),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "securityContext": security,
        "resources": resources(settings),
        "volumeMounts": mounts,
    }


def _words(settings: Settings) -> list[str]:
    words = ["penstock", "verify", "--plan", f"{PLAN}/plan.yaml", "--json", "-"]
    if settings.volume.claim:
        words += ["--weights", MODELS]
    if settings.nodes > 1:
        name = f"{settings.name}-verify"
        words += ["--nnodes", str(settings.nodes), "--node-rank", "$(JOB_COMPLETION_INDEX)"]
        # A pod of an indexed Job has the host name JOB-INDEX.
        words += ["--master-addr", f"{name}-0.{name}:{MASTER_PORT}"]
        words += ["--cluster-token-file", f"{TOKEN}/token"]
    return words


def _volumes(settings: Settings) -> list[dict[str, object]]:
    name = f"{settings.name}-verify"
    found: list[dict[str, object]] = [
        {"name": "plan", "configMap": {"name": name}},
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory_limit(settings)},
        },
    ]
    if settings.nodes > 1:
        found.append({"name": "token", "secret": {"secretName": name}})
    if claim := settings.volume.claim:
        found.append({"name": "model", **claim_source(claim, read_only=True)})
    return found
