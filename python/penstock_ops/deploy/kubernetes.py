"""Creates all Kubernetes objects of a deployment, in the order to apply them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from penstock.config import ranks_of_nodes
from penstock.core import PenstockError
from penstock_ops.deploy.devices import DEVICE_LABEL, node_selector
from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.engines import pods
from penstock_ops.deploy.facts import facts
from penstock_ops.deploy.files import FILES, WORKLOADS
from penstock_ops.deploy.kinds.inference_objective import inference_objective
from penstock_ops.deploy.kinds.nic_cluster_policy import nic_cluster_policy
from penstock_ops.deploy.kinds.pod import UDEV
from penstock_ops.deploy.kinds.ray_cluster import ray_cluster
from penstock_ops.deploy.kinds.weights import HUB_SECRET
from penstock_ops.deploy.parts import settled
from penstock_ops.deploy.resources import USER
from penstock_ops.deploy.settings import Settings
from penstock_ops.deploy.volumes import EMPTY_DIR, KEPT, check_volume

SHORT_LIVED = "--claim-per-pod ephemeral, --kv-volume claim-per-pod:ephemeral"
"""Flags for claims that last as long as their pods."""
KUSTOMIZATION = "kustomization.yaml"

Manifests = dict[str, dict[str, object]]
"""Kubernetes objects by the name of their file."""


def manifests(settings: Settings) -> Manifests:
    """The objects for a plan and its settings, by file name. PenstockError for settings with which
    no engine can serve.
    """
    check(settings)
    found, known = {}, facts(settings)
    if settings.nic_interfaces:
        found["nic-cluster-policy.yaml"] = nic_cluster_policy(known, settings)
    for file in FILES:
        if file.condition(known) and not (settings.ray and file.name in WORKLOADS):
            found[file.name] = file.make(known)
    if settings.ray:
        for replica in range(int(settings.choice["replicas"])):
            found[f"ray-cluster-{replica}.yaml"] = ray_cluster(known, settings, replica)
    for name, priority in (settings.front.objectives or {}).items() if settings.front else ():
        found[f"objective-{name}.yaml"] = inference_objective(known, name, priority)
    return {name: settled(manifest) for name, manifest in found.items()}


def check(settings: Settings) -> None:
    """Raise PenstockError for settings that a cluster would accept but with which no engine can
    serve.
    """
    if settings.ray:
        _check_ray(settings)
    if settings.ranks % settings.nodes or not _alike(settings):
        raise PenstockError(
            f"{settings.ranks} ranks do not divide over {settings.nodes} pods, which are alike"
        )
    check_volume(settings.volume, settings.nodes * settings.most_replicas)
    _check_own_claims(settings)
    shares = (settings.front.canary, settings.front.mirror) if settings.front else ()
    if any(share and share.name == settings.name for share in shares):
        raise PenstockError(f"--canary and --mirror name another deployment than {settings.name}")


def _check_own_claims(settings: Settings) -> None:
    """Raise PenstockError for claims of pods that their owner cannot create."""
    owns = (settings.volume.own, settings.kv_volume.own if settings.disk else "")
    if settings.ray and KEPT in owns:
        raise PenstockError(f"a RayCluster makes no claims that outlive its pods: {SHORT_LIVED}")
    if settings.kv_volume != EMPTY_DIR and not settings.disk:
        raise PenstockError("--kv-volume is for a disk tier: give --kv-tier disk:PATH,SIZE, too")


def _alike(settings: Settings) -> bool:
    """Whether all nodes of a Penstock replica have the same number of ranks; true for other
    engines.
    """
    tp, pp = (int(settings.choice[f"{name}_parallel_size"]) for name in ("tensor", "pipeline"))
    held = ranks_of_nodes(tp, pp, settings.nodes)
    return settings.engine != "penstock" or len(set(map(len, held))) == 1


def _check_ray(settings: Settings) -> None:
    if not pods(settings).on_ray:
        raise PenstockError(
            f"{settings.engine} has no Ray executor here: see `penstock deploy k8s`"
        )
    if settings.engine == "penstock" and settings.spans:
        raise PenstockError(
            f"a stage of {settings.choice['tensor_parallel_size']} ranks on pods of "
            f"{settings.on_pod}: Penstock's Ray executor keeps a stage on one node; see "
            "`penstock deploy k8s`"
        )
    if settings.scaling:
        raise PenstockError("a replica is a RayCluster of its own, which no autoscaler makes")


def write(found: Manifests, directory: Path, *, kustomize: bool = False) -> list[Path]:
    """Write a file for each object. `leftovers` has the files of an earlier call that stay."""
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


def leftovers(written: Iterable[Path], directory: Path) -> list[str]:
    """Names of files in `directory` that an earlier call has written, and this one has not."""
    names = {file.name for file in FILES} - {path.name for path in written}
    return sorted(name for name in names if (directory / name).is_file())


def notes(settings: Settings) -> list[str]:
    """Notes for the user: what the cluster must have, and which settings could be stricter."""
    found = []
    if settings.ray:
        found.append("needs the KubeRay operator in the cluster, and Ray in the image")
    elif settings.nodes > 1:
        found.append(
            "needs the LeaderWorkerSet controller in the cluster: kubectl apply --server-side -f "
            "https://github.com/kubernetes-sigs/lws/releases/download/v0.9.0/manifests.yaml"
        )
    if settings.needs_token:
        found.append(
            f"needs a secret: kubectl create secret generic {settings.name}-cluster "
            "--from-literal token=$(openssl rand -hex 32)"
        )
    if settings.api_key_secret:
        found.append(f"needs the key api-key in the secret {settings.api_key_secret}")
    else:
        found.append("open: whoever reaches the Service may use it; --api-key-secret closes it")
    if settings.choice["replicas"] == 1:
        found.append(
            "one replica: an update, or a drain of its node, stops the service until the next one "
            "has loaded; --replicas 2 avoids it"
        )
    if settings.uses_rdma:
        found.append("IPC_LOCK for RDMA: the namespace must allow more than Pod Security baseline")
    elif settings.spans and settings.has_devices:
        found.append(
            f"a stage is on {settings.nodes} pods, and the plan's target names no resources of a "
            "fabric: its sums need RDMA for the speed that is planned"
        )
    found += _notes_of_volumes(settings)
    found += _notes_of_kinds(settings)
    runs = settings.plan["model"]["runs"]
    if settings.engine == "penstock" and runs != "yes":
        found.append(f"these pods cannot run: {runs}")
    elif settings.engine == "penstock" and settings.has_devices:
        found.append(
            "--device cuda is measured on one H100, and in no pod yet; --image: `make image "
            "VARIANT=cuda`, which has penstock[cuda]"
        )
    return found


def _notes_of_volumes(settings: Settings) -> list[str]:
    found = []
    volume, kv = settings.volume, settings.kv_volume
    paths = [volume.host_path, kv.host_path, UDEV if settings.direct_disk else ""]
    if hosts := ", ".join(filter(None, paths)):
        found.append(f"hostPath {hosts}: the namespace must allow more than Pod Security baseline")
    if volume.pull:
        found.append(
            f"a gated model needs a secret: kubectl create secret generic {HUB_SECRET} "
            "--from-literal token=hf_..."
        )
    if volume.nfs or kv.nfs:
        found.append(
            "a PersistentVolume is the cluster's: --name is unique in it, not only in the namespace"
        )
    if (kv.host_path or kv.nfs) and not pods(settings).root:
        found.append(
            f"the directory of the disk tier belongs to uid {USER}: install -d -m 700 -o {USER} "
            f"{kv.host_path or (kv.nfs and kv.nfs.path)}, on each node or on the server"
        )
    if settings.nodes > 1 and KEPT in (volume.own, kv.own):
        found.append(
            "claims of pods need LeaderWorkerSet 0.8 or later; with an older one, which has no "
            f"volumeClaimTemplates: {SHORT_LIVED}"
        )
    if volume.image:
        found.append(
            "image volume: stable in Kubernetes 1.36, beta from 1.33 on (1.33 and 1.34 need the "
            "feature gate ImageVolume), with containerd 2.1 or CRI-O; its files must be readable "
            "by all users"
        )
    if settings.tiers and settings.engine == "vllm":
        found.append("--kv-tier of vLLM: LMCache must be in the image (lmcache/vllm-openai)")
    return found


def _notes_of_kinds(settings: Settings) -> list[str]:
    found = []
    front, scaling = settings.front, settings.scaling
    if front and front.gateway_class:
        found.append(
            f"needs the kinds of the Gateway API and InferencePool, and a controller of class "
            f"{front.gateway_class}"
        )
        if not front.tls_secret:
            found.append("the picker speaks plain gRPC: some Gateways want --picker-tls-secret")
    if scaling and scaling.prometheus:
        found.append("needs KEDA, and Prometheus with the labels pod and container")
    elif scaling:
        engine = pods(settings)
        found.append(f"needs an adapter for custom metrics with {engine.waiting}, {engine.kv_use}")
    if settings.cluster.service_type == "LoadBalancer" and not settings.api_key_secret:
        found.append("LoadBalancer without --api-key-secret: everyone who reaches it is served")
    if DEVICE_LABEL in node_selector(settings):
        found.append(
            f"pods select nodes by {DEVICE_LABEL}, which NVIDIA's GPU feature discovery sets: "
            "without it --any-device"
        )
    if settings.nic_interfaces:
        found.append("nic-cluster-policy.yaml is for the whole cluster: it has one such object")
    return found
