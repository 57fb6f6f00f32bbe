"""RayCluster: KubeRay's pods for one replica. The server runs in the head's container."""

from __future__ import annotations

import shlex
from typing import Any

from penstock_ops.deploy.engines.penstock import PROGRAM
from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.pod import template
from penstock_ops.deploy.resources import RAY_STORE
from penstock_ops.deploy.settings import Settings

START = "$KUBERAY_GEN_RAY_START_CMD"
"""Variable with the command that KubeRay would start in a pod, with its group's parameters."""
COMPLETE = (
    "import ray; ray.init('auto', log_to_driver=False); "
    "raise SystemExit(sum(node['Alive'] for node in ray.nodes()) < {nodes})"
)
HEALTH = {
    "exec": {"command": ["ray", "health-check"]},
    "periodSeconds": 10,
    "timeoutSeconds": 10,
    "failureThreshold": 6,
}


def ray_cluster(facts: Facts, settings: Settings, replica: int) -> dict[str, object]:
    """One cluster for each replica, so that servers do not share the failures of a Ray cluster."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": f"{facts.name}-{replica}",
            "labels": facts.labels(),
            # Use our probes and commands: KubeRay's probes need a dashboard, which images may lack.
            "annotations": {"ray.io/overwrite-container-cmd": "true"},
        },
        "spec": {
            # The operator creates a token, without which nothing can join.
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                "rayStartParams": _parameters(settings),
                "template": _template(facts, leader=True),
            },
            "workerGroupSpecs": _workers(facts, settings),
        },
    }


def _workers(facts: Facts, settings: Settings) -> list[dict[str, object]]:
    if settings.nodes == 1:
        return []
    count = settings.nodes - 1
    return [
        {
            "groupName": "node",
            "replicas": count,
            "minReplicas": count,
            "maxReplicas": count,
            "rayStartParams": _parameters(settings),
            "template": _template(facts, leader=False),
        }
    ]


def _parameters(settings: Settings) -> dict[str, str]:
    """Ray parameters: one CPU for each rank. The object store carries no tensors."""
    found = {"num-cpus": str(settings.on_pod), "object-store-memory": str(RAY_STORE)}
    if settings.has_devices:
        found["num-gpus"] = str(settings.on_pod)
    return found


def _template(facts: Facts, leader: bool) -> dict[str, object]:
    found: dict[str, Any] = template(facts, leader)
    (container,) = found["spec"]["containers"]
    container["command"] = ["/bin/bash", "-c", "--"]
    container["args"] = [_serve(facts) if leader else f"ulimit -n 65536; exec {START}"]
    if not leader:
        container |= {"readinessProbe": HEALTH, "livenessProbe": HEALTH}
    return found


def _serve(facts: Facts) -> str:
    """Start Ray's head in the background, and the server when all nodes have joined."""
    wait = shlex.join([PROGRAM[0], "-c", COMPLETE.format(nodes=facts.nodes)])
    words = shlex.join(facts.server.command)
    return (
        f"ulimit -n 65536; {START} & until {wait}; "
        f"do kill -0 $! || exit 1; sleep 2; done; exec {words}"
    )
