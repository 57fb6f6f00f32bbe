"""Manifests that a real Kubernetes API server takes, as a dry run with strict fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from penstock.cli.main import main

from tests.deploy.conftest import HERE
from tests.deploy.definitions import definitions, paths
from tests.e2e.server import eventually
from tests.kubernetes.bed import Bed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

PATHS = {
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
    "Pod": "/api/v1/namespaces/default/pods",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "Service": "/api/v1/namespaces/default/services",
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    **paths(),
}
STRICT = "?dryRun=All&fieldValidation=Strict"
FRONT = ("--claim", "w", "--pod-monitor", "--gateway-image", "registry/penstock@sha256:1")
INTERFACES = ",".join(f"ibs{number}" for number in range(8))
DEPLOYMENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "processors": (HERE, "k8s", ("--claim", "w")),
    "pulled": (HERE, "k8s", ("--pull", "org/name", "--storage-class", "fast")),
    "one-device": ("vllm-one-device", "k8s", ("--host-path", "/srv/models")),
    "eight-devices": ("vllm-eight-devices", "k8s", ("--claim", "w", "--pod-monitor")),
    "two-by-eight": ("penstock-two-nodes", "k8s", ("--claim", "w", "--api-key-secret", "keys")),
    "rdma": ("sglang-two-nodes", "k8s", ("--claim", "w", "--nic-interfaces", INTERFACES)),
    "topology": ("sglang-by-requests", "k8s", ("--claim", "w", "--topology-file", "vm.xml")),
    "tiers": (
        HERE,
        "k8s",
        ("--claim", "w", "--kv-tier", "ram:4GiB", "--kv-tier", "disk:/var/kv,64GiB"),
    ),
    "amd": ("amd", "k8s", ("--claim", "w", "--node-selector", "gpu=mi300x")),
    "proxy": ("vllm-one-device", "k8s", (*FRONT, "--gateway", "proxy")),
    "picker": (
        "sglang-two-nodes",
        "k8s",
        (*FRONT, "--gateway", "istio", "--picker-tls-secret", "tls", "--objective", "batch=-1"),
    ),
    "autoscaled": (HERE, "k8s", ("--claim", "w", "--autoscale-to", "8")),
    "autoscaled-group": ("vllm-two-nodes", "k8s", ("--claim", "w", "--autoscale-to", "3")),
    "keda": (HERE, "k8s", ("--claim", "w", "--autoscale-to", "8", "--prometheus", "http://p:9090")),
    "ray": ("penstock-two-nodes", "ray", (*FRONT, "--gateway", "proxy")),
    "ray-vllm": ("vllm-one-node", "ray", ("--claim", "w")),
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """A cluster that knows all kinds."""
    with Bed(tmp_path_factory.mktemp("bed")) as made:
        for definition in definitions():
            made.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        with made.client() as client:
            for path in paths().values():
                eventually(partial(known, client, path), path)
        yield made


def known(client: httpx.Client, path: str) -> bool:
    return client.get(path).is_success


@pytest.fixture
def deployed(
    plan: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, Any]]:
    """Manifests of DEPLOYMENTS by file name."""

    def write(name: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        Path("vm.xml").write_text('<system version="1">\n</system>\n')
        kind, target, words = DEPLOYMENTS[name]
        asked = ["--image", "registry/engine@sha256:0", "-o", "manifests", *words]
        assert main(["deploy", target, str(plan(kind)), *asked]) == 0
        return {path.name: yaml.safe_load(path.read_text()) for path in Path("manifests").iterdir()}

    return write


def objects(files: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All objects, and the pods of those groups whose controllers are not Kubernetes' own."""
    for manifest in files.values():
        yield manifest
        spec = manifest.get("spec", {})
        if manifest["kind"] == "LeaderWorkerSet":
            group = spec["leaderWorkerTemplate"]
            templates = [group["leaderTemplate"], group["workerTemplate"]]
        elif manifest["kind"] == "RayCluster":
            templates = [
                part["template"] for part in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
            ]
        else:
            continue
        for number, template in enumerate(templates):
            metadata = {**template["metadata"], "name": f"{manifest['metadata']['name']}-{number}"}
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": template["spec"],
            }


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_api_server_takes_all_objects(
    bed: Bed, deployed: Callable[[str], dict[str, Any]], name: str
) -> None:
    for manifest in objects(deployed(name)):
        answer = bed.call("POST", PATHS[manifest["kind"]] + STRICT, manifest)
        assert answer["kind"] == manifest["kind"]


Change = Callable[[dict[str, Any]], object]
REFUSED: dict[str, tuple[str, str, Change]] = {
    "a field that is not there": (
        "processors",
        "deployment.yaml",
        lambda spec: spec["template"]["spec"]["containers"][0].update(volumeMount=[]),
    ),
    "a selector of other pods": (
        "processors",
        "deployment.yaml",
        lambda spec: spec["selector"]["matchLabels"].update({"app.kubernetes.io/instance": "x"}),
    ),
    "a mount without a volume": (
        "processors",
        "deployment.yaml",
        lambda spec: spec["template"]["spec"]["volumes"].pop(0),
    ),
    "a size that is a text": (
        "two-by-eight",
        "leader-worker-set.yaml",
        lambda spec: spec["leaderWorkerTemplate"].update(size="two"),
    ),
    "a restart policy of another kind": (
        "two-by-eight",
        "leader-worker-set.yaml",
        lambda spec: spec["leaderWorkerTemplate"].update(restartPolicy="Always"),
    ),
    "a picker without a port": (
        "picker",
        "inference-pool.yaml",
        lambda spec: spec["endpointPickerRef"].pop("port"),
    ),
    "another failure mode": (
        "picker",
        "inference-pool.yaml",
        lambda spec: spec["endpointPickerRef"].update(failureMode="FailSlow"),
    ),
    "a listener without a protocol": (
        "picker",
        "gateway.yaml",
        lambda spec: spec["listeners"][0].pop("protocol"),
    ),
    "a time limit without a unit": (
        "picker",
        "http-route.yaml",
        lambda spec: spec["rules"][0].update(timeouts={"request": "0"}),
    ),
    "a path that is none": (
        "picker",
        "http-route.yaml",
        lambda spec: spec["rules"][0].update(
            matches=[{"path": {"type": "PathPrefix", "value": "v1"}}]
        ),
    ),
    "fewer than the least replicas": (
        "autoscaled",
        "horizontal-pod-autoscaler.yaml",
        lambda spec: spec.update(maxReplicas=1),
    ),
    "a trigger without data": (
        "keda",
        "scaled-object.yaml",
        lambda spec: spec["triggers"][0].pop("metadata"),
    ),
    "a scheme that is none": (
        "picker",
        "gateway-pod-monitor.yaml",
        lambda spec: spec["podMetricsEndpoints"][0].update(scheme="tcp"),
    ),
    "a driver with a field that is not there": (
        "rdma",
        "nic-cluster-policy.yaml",
        lambda spec: spec["ofedDriver"].update(tag="25.04"),
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_wrong_is_refused(
    bed: Bed, deployed: Callable[[str], dict[str, Any]], wrong: str
) -> None:
    name, file, change = REFUSED[wrong]
    manifest = copy.deepcopy(deployed(name)[file])
    change(manifest["spec"])
    with bed.client() as client:
        answer: httpx.Response = client.post(PATHS[manifest["kind"]] + STRICT, json=manifest)
    assert answer.status_code in (400, 422), answer.text
