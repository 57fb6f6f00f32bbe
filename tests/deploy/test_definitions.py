"""Objects of kinds that are not Kubernetes' own, checked by their definitions without a server."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import pytest

from tests.deploy.conftest import HERE, Written
from tests.deploy.definitions import definitions

INTERFACES = ",".join(f"ibs{number}" for number in range(8))
FRONT = ("--claim", "w", "--gateway-image", "penstock@sha256:1", "--gateway", "istio")
KEDA = ("--autoscale-to", "4", "--prometheus", "http://prometheus:9090")
CASES = {
    "sglang-two-nodes": (*FRONT, *KEDA, "--nic-interfaces", INTERFACES, "--pod-monitor"),
    HERE: (*FRONT, "--picker-tls-secret", "tls", "--pod-monitor"),
}


def strict(schema: Any) -> Any:
    """As an API server with strict fields reads a schema: what it does not name is wrong."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(item) for key, item in schema.items()}
    if found.get("x-kubernetes-int-or-string") is True:
        return {}
    open_ended = {"x-kubernetes-preserve-unknown-fields", "additionalProperties"} & found.keys()
    if "properties" in found and not open_ended:
        found["additionalProperties"] = False
    return found


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
