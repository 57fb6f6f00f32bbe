"""Manifests that a real Kubernetes API server takes, as a dry run with strict fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.deploy.conftest import DEPLOYMENTS, Deployed
from tests.deploy.definitions import definitions, paths
from tests.deploy.kubeconform import native
from tests.e2e.server import eventually
from tests.kubernetes.bed import Bed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

PATHS = {
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
    "Pod": "/api/v1/namespaces/default/pods",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "Service": "/api/v1/namespaces/default/services",
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
    **paths(),
}
STRICT = "?dryRun=All&fieldValidation=Strict"


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


def test_the_definitions_of_kubeconform_are_those_that_the_server_has(bed: Bed) -> None:
    served = without_descriptions(bed.call("GET", "/openapi/v2")["definitions"])
    for name, definition in native().items():
        assert definition == served[name], name


def without_descriptions(schema: Any, *, names: bool = False) -> Any:
    """The same, but for descriptions; a field with that name stays, where keys are `names`."""
    if isinstance(schema, list):
        return [without_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_descriptions(item, names=key == "properties")
        for key, item in schema.items()
        if names or key != "description"
    }


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_api_server_takes_all_objects(bed: Bed, deployed: Deployed, name: str) -> None:
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
def test_what_is_wrong_is_refused(bed: Bed, deployed: Deployed, wrong: str) -> None:
    name, file, change = REFUSED[wrong]
    manifest = copy.deepcopy(deployed(name)[file])
    change(manifest["spec"])
    with bed.client() as client:
        answer: httpx.Response = client.post(PATHS[manifest["kind"]] + STRICT, json=manifest)
    assert answer.status_code in (400, 422), answer.text
