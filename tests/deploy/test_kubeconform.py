"""All objects by kubeconform, offline: with the definitions of an API server and of publishers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_ops.deploy.emit import dump
from tests.deploy.conftest import DEPLOYMENTS, Deployed
from tests.deploy.kubeconform import findings, write_schemas
from tests.deploy.test_api_server import objects


@pytest.fixture(scope="session")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(folder)
    return folder


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_all_objects_are_valid(
    schemas: Path, deployed: Deployed, tmp_path: Path, name: str
) -> None:
    files = deployed(name)
    written = sorted((tmp_path / "manifests").iterdir())
    assert findings(schemas, *written) == (len(files), [])


def test_the_page_counts_the_deployments() -> None:
    page = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
    assert len(DEPLOYMENTS) == 27
    assert "accepts all objects of twenty-seven deployments" in page


@pytest.mark.parametrize("name", ["two-by-eight", "ray"])
def test_the_pods_of_groups_are_valid(
    schemas: Path, deployed: Deployed, tmp_path: Path, name: str
) -> None:
    """Definitions of other projects know pods as they were, and RayCluster's is not there."""
    pods = [each for each in objects(deployed(name)) if each["kind"] == "Pod"]
    assert len(pods) == 2
    for number, pod in enumerate(pods):
        file = tmp_path / f"pod-{number}.yaml"
        file.write_text(dump(pod))
        assert findings(schemas, file) == (1, [])


Change = Callable[[dict[str, Any]], object]
WRONG: dict[str, tuple[str, str, Change, str]] = {
    "a field that pods do not have": (
        "processors",
        "deployment.yaml",
        lambda spec: spec["template"]["spec"]["containers"][0].update(volumeMount=[]),
        "volumeMount",
    ),
    "a number for a text": (
        "processors",
        "deployment.yaml",
        lambda spec: spec["template"]["spec"]["containers"][0].update(image=1),
        "/spec/template/spec/containers/0/image",
    ),
    "a port that is a list": (
        "processors",
        "service.yaml",
        lambda spec: spec["ports"][0].update(targetPort=[8000]),
        "/spec/ports/0/targetPort",
    ),
    "a size that is a text": (
        "two-by-eight",
        "leader-worker-set.yaml",
        lambda spec: spec["leaderWorkerTemplate"].update(size="two"),
        "/spec/leaderWorkerTemplate/size",
    ),
    "a restart policy of another kind": (
        "two-by-eight",
        "leader-worker-set.yaml",
        lambda spec: spec["leaderWorkerTemplate"].update(restartPolicy="Always"),
        "/spec/leaderWorkerTemplate/restartPolicy",
    ),
    "another failure mode": (
        "picker",
        "inference-pool.yaml",
        lambda spec: spec["endpointPickerRef"].update(failureMode="FailSlow"),
        "/spec/endpointPickerRef/failureMode",
    ),
    "a listener without a protocol": (
        "picker",
        "gateway.yaml",
        lambda spec: spec["listeners"][0].pop("protocol"),
        "protocol",
    ),
    "a trigger without data": (
        "keda",
        "scaled-object.yaml",
        lambda spec: spec["triggers"][0].pop("metadata"),
        "metadata",
    ),
    "a driver with a field that is not there": (
        "rdma",
        "nic-cluster-policy.yaml",
        lambda spec: spec["ofedDriver"].update(tag="25.04"),
        "tag",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(
    schemas: Path, deployed: Deployed, tmp_path: Path, wrong: str
) -> None:
    name, file, change, place = WRONG[wrong]
    manifest = deployed(name)[file]
    change(manifest["spec"])
    path = tmp_path / "manifests" / file
    path.write_text(dump(manifest))
    _, (found,) = findings(schemas, path)
    assert place in found


def test_a_kind_without_a_schema_is_no_pass(schemas: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown.yaml"
    path.write_text(dump({"apiVersion": "v1", "kind": "Unknown", "metadata": {"name": "n"}}))
    _, (found,) = findings(schemas, path)
    assert "schema" in found
