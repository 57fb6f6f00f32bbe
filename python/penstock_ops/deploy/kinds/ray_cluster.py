"""RayCluster: the pods of one replica, created by the KubeRay operator. The server runs in the
container of Ray's head node.
"""

from __future__ import annotations

import shlex
from typing import Any

from penstock_ops.deploy.engines.penstock import PROGRAM
from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.pod import template
from penstock_ops.deploy.resources import RAY_STORE
from penstock_ops.deploy.settings import Settings

START = "$KUBERAY_GEN_RAY_START_CMD"
"""Environment variable with the command that KubeRay would run to start Ray in this pod."""
COMPLETE = (
    "import ray; ray.init('auto', log_to_driver=False); "
    "raise SystemExit(sum(node['Alive'] for node in ray.nodes()) < {nodes})"
)
NO_STATISTICS = {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}
"""Without it, Ray reports its use to its developers."""
HEALTH = {
    "exec": {"command": ["ray", "health-check"]},
    "periodSeconds": 10,
    "timeoutSeconds": 10,
    "failureThreshold": 6,
}


def ray_cluster(facts: Facts, settings: Settings, replica: int) -> dict[str, object]:
    """The RayCluster of one replica. Each replica has its own, so that the failure of a Ray cluster
    affects only one server.
    """
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": f"{facts.name}-{replica}",
            "labels": facts.labels(),
            # Use the probes and commands below. KubeRay's own probes need Ray's dashboard, which an
            # image may lack.
            "annotations": {"ray.io/overwrite-container-cmd": "true"},
        },
        "spec": {
            # The operator creates a token; only nodes with it can join the Ray cluster.
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                "rayStartParams": _parameters(settings),
                "template": _template(facts, True, 2 * settings.start_seconds),
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
            "template": _template(facts, False, 2 * settings.start_seconds),
        }
    ]


def _parameters(settings: Settings) -> dict[str, str]:
    """Ray's start parameters for a node: one CPU (and device) for each rank. The object store is
    minimal, because no tensors go through it.
    """
    found = {"num-cpus": str(settings.on_pod), "object-store-memory": str(RAY_STORE)}
    if settings.has_devices:
        found["num-gpus"] = str(settings.on_pod)
    return found


def _template(facts: Facts, leader: bool, limit: int) -> dict[str, object]:
    found: dict[str, Any] = template(facts, leader)
    (container,) = found["spec"]["containers"]
    container["command"] = ["/bin/bash", "-c", "--"]
    container["env"] = [*container["env"], NO_STATISTICS]
    container["args"] = [_serve(facts, limit) if leader else f"ulimit -n 65536; exec {START}"]
    if not leader:
        container |= {"readinessProbe": HEALTH, "livenessProbe": HEALTH}
    return found


def _serve(facts: Facts, limit: int) -> str:
    """Shell script for the head's container: starts Ray in the background, and the server when all
    nodes have joined. After `limit` seconds with fewer nodes it fails, and names the number.
    """
    wait = shlex.join([PROGRAM[0], "-c", COMPLETE.format(nodes=facts.nodes)])
    words = shlex.join(facts.server.command)
    late = shlex.quote(f"fewer than {facts.nodes} nodes of Ray after {limit} s: kubectl get pods")
    return (
        f"ulimit -n 65536; {START} & until {wait}; do kill -0 $! || exit 1; "
        f"[ $SECONDS -lt {limit} ] || {{ echo {late} >&2; exit 1; }}; sleep 2; done; exec {words}"
    )
