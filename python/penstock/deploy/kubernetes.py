"""All objects of a deployment, in the order in which they are applied."""

from __future__ import annotations

from pathlib import Path

from penstock.core import PenstockError
from penstock.deploy.emit import dump
from penstock.deploy.kinds.claim import claim
from penstock.deploy.kinds.deployment import deployment
from penstock.deploy.kinds.disruption_budget import disruption_budget
from penstock.deploy.kinds.leader_worker_set import leader_worker_set
from penstock.deploy.kinds.network_policy import network_policy
from penstock.deploy.kinds.pod_monitor import pod_monitor
from penstock.deploy.kinds.pull_job import pull_job
from penstock.deploy.kinds.service import service
from penstock.deploy.settings import Settings

KUSTOMIZATION = "kustomization.yaml"

Manifests = dict[str, dict[str, object]]
"""Objects by file name."""


def manifests(settings: Settings, *, monitor: bool = False) -> Manifests:
    """`monitor`: the cluster has the Prometheus operator's kinds."""
    check(settings)
    found: Manifests = {}
    if settings.volume.pull:
        found["claim.yaml"] = claim(settings)
        found["pull-job.yaml"] = pull_job(settings)
    if settings.nodes > 1:
        found["leader-worker-set.yaml"] = leader_worker_set(settings)
    else:
        found["deployment.yaml"] = deployment(settings)
    found["service.yaml"] = service(settings)
    found["disruption-budget.yaml"] = disruption_budget(settings)
    found["network-policy.yaml"] = network_policy(settings)
    if monitor:
        found["pod-monitor.yaml"] = pod_monitor(settings)
    return found


def check(settings: Settings) -> None:
    """What a cluster would accept and no engine could serve: PenstockError."""
    choice = settings.choice
    if settings.ranks < 1 or int(choice["replicas"]) < 1:
        raise PenstockError("the plan has no ranks or no replicas")
    stages = int(choice["pipeline_parallel_size"])
    if settings.engine == "penstock" and settings.nodes > stages:
        raise PenstockError(
            f"{settings.nodes} pods of a replica with {stages} stages: a stage of Penstock is on "
            "one host"
        )
    if settings.nodes > 1 and settings.ranks % settings.nodes:
        raise PenstockError(
            f"{settings.ranks} ranks do not divide over {settings.nodes} pods, which are alike"
        )
    sources = (settings.volume.claim, settings.volume.host_path, settings.volume.pull)
    if sum(map(bool, sources)) != 1:
        raise PenstockError("where is the model? give one of --claim, --host-path, --pull")


def write(found: Manifests, directory: Path, *, kustomize: bool = False) -> list[Path]:
    """A file for each object; files of an earlier generation that are no longer made stay."""
    directory.mkdir(parents=True, exist_ok=True)
    documents = dict(found)
    if kustomize:
        documents[KUSTOMIZATION] = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": list(found),
        }
    written = []
    for name, manifest in documents.items():
        path = directory / name
        path.write_text(dump(manifest), encoding="utf-8")
        written.append(path)
    return written


def notes(settings: Settings) -> list[str]:
    """What must be there before, or is not as strict as it could be."""
    found = []
    if settings.nodes > 1:
        found.append("needs the LeaderWorkerSet controller in the cluster")
    if settings.engine == "penstock" and settings.nodes > 1:
        found.append(
            f"needs a secret: kubectl create secret generic {settings.name}-cluster "
            "--from-literal token=$(openssl rand -hex 32)"
        )
    if settings.api_key_secret:
        found.append(f"needs the key api-key in the secret {settings.api_key_secret}")
    if settings.uses_rdma:
        found.append("IPC_LOCK for RDMA: the namespace must allow more than Pod Security baseline")
    if settings.volume.host_path:
        found.append("hostPath: the namespace must allow more than Pod Security baseline")
    runs = settings.plan["model"]["runs"]
    if settings.engine == "penstock" and (runs != "yes" or settings.has_devices):
        why = runs if runs != "yes" else "Penstock has no backend for GPUs yet"
        found.append(f"these pods cannot run: {why}")
    return found
