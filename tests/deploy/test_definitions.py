"""Objects of kinds that are not Kubernetes' own, checked by their definitions without a server."""

from __future__ import annotations

from functools import cache

import jsonschema
import pytest

from tests.deploy.conftest import HERE, Written
from tests.deploy.definitions import definitions, strict

INTERFACES = ",".join(f"ibs{number}" for number in range(8))
FRONT = ("--claim", "w", "--gateway-image", "penstock:1", "--gateway", "istio")
KEDA = ("--autoscale-to", "4", "--prometheus", "http://prometheus:9090")
CASES = {
    "sglang-two-nodes": (*FRONT, *KEDA, "--nic-interfaces", INTERFACES, "--pod-monitor"),
    HERE: (*FRONT, "--picker-tls-secret", "tls", "--pod-monitor"),
}


@cache
def validators() -> dict[str, jsonschema.Draft7Validator]:
    found = {}
    for definition in definitions():
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        named = {"apiVersion": {}, "kind": {}, "metadata": {}, **schema["properties"]}
        named["metadata"] = {"type": "object", "additionalProperties": True}
        kind = definition["spec"]["names"]["kind"]
        found[kind] = jsonschema.Draft7Validator(strict({**schema, "properties": named}))
    return found


@pytest.mark.parametrize("kind", CASES)
def test_objects_are_as_their_definitions_say(written: Written, kind: str) -> None:
    checked = set()
    for name, manifest in written(kind, *CASES[kind]).items():
        validator = validators().get(manifest["kind"])
        if validator:
            assert [error.message for error in validator.iter_errors(manifest)] == [], name
            checked.add(manifest["kind"])
    assert checked >= {"Gateway", "HTTPRoute", "InferencePool", "PodMonitor"}
    if kind != HERE:
        assert checked >= {"LeaderWorkerSet", "NicClusterPolicy", "ScaledObject"}


def test_a_field_that_no_definition_has(written: Written) -> None:
    manifest = written(HERE, *FRONT)["inference-pool.yaml"]
    manifest["spec"]["targetPortNumber"] = 8000  # As v1alpha2 had it.
    assert list(validators()["InferencePool"].iter_errors(manifest))
