"""Manifests that a real Kubernetes API server takes, as a dry run. The pods of a LeaderWorkerSet,
whose kind is not there, are sent as pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.conftest import HERE, PLANS, Written
from tests.kubernetes.bed import Bed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
    "Pod": "/api/v1/namespaces/default/pods",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "Service": "/api/v1/namespaces/default/services",
}
STRICT = "?dryRun=All&fieldValidation=Strict"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed")) as made:
        yield made


def objects(files: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for manifest in files.values():
        if manifest["kind"] != "LeaderWorkerSet":
            yield manifest
            continue
        templates = manifest["spec"]["leaderWorkerTemplate"]
        for part in ("leaderTemplate", "workerTemplate"):
            name = f"{manifest['metadata']['name']}-{part[:6]}"
            metadata = {**templates[part]["metadata"], "name": name}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            yield {**pod, "spec": templates[part]["spec"]}


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_the_api_server_takes_all_objects(bed: Bed, written: Written, kind: str) -> None:
    for files in (written(kind), written(kind, "--pull", "org/name")):
        for manifest in objects(files):
            answer = bed.call("POST", PATHS[manifest["kind"]] + STRICT, manifest)
            assert answer["kind"] == manifest["kind"]


def test_an_object_with_a_wrong_field_is_refused(bed: Bed, written: Written) -> None:
    manifest = written(HERE)["deployment.yaml"]
    manifest["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(AssertionError, match="volumeMount"):
        bed.call("POST", PATHS["Deployment"] + STRICT, manifest)
