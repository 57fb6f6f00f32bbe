"""Definitions of the kinds that manifests have besides Kubernetes' own.

tests/fixtures/kubernetes has those of Gateway API 1.6, InferencePool v1, LeaderWorkerSet 0.9,
NicClusterPolicy, PodMonitor 0.85 and ScaledObject (KEDA 2.21), Apache-2.0, without descriptions.
RayCluster (1 MB) and InferenceObjective are there by name only: what they have inside is not
checked, but the pods of a RayCluster are, as pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.kubernetes.bed import CRDS

BY_NAME = {
    "rayclusters": ("ray.io", "v1", "RayCluster"),
    "inferenceobjectives": ("llm-d.ai", "v1alpha2", "InferenceObjective"),
}


def definitions() -> Iterator[dict[str, Any]]:
    for path in sorted(CRDS.glob("*.json")):
        yield json.loads(path.read_text())
    yield yaml.safe_load((CRDS / "inferencepools.yaml").read_text())
    for plural, (group, version, kind) in BY_NAME.items():
        yield _by_name(plural, group, version, kind)


def strict(schema: Any) -> Any:
    """As an API server with strict fields reads a schema: what it does not name is wrong."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(item) for key, item in schema.items()}
    if found.get("x-kubernetes-int-or-string") is True:
        return {"type": ["string", "integer"]}
    open_ended = {"x-kubernetes-preserve-unknown-fields", "additionalProperties"} & found.keys()
    if "properties" in found and not open_ended:
        found["additionalProperties"] = False
    return found


def _by_name(plural: str, group: str, version: str, kind: str) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    versions = [
        {
            "name": version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
    }


def paths() -> dict[str, str]:
    """Where the objects of each defined kind are posted, in the namespace default."""
    found = {}
    for definition in definitions():
        spec = definition["spec"]
        (version,) = (each["name"] for each in spec["versions"])
        place = "/namespaces/default" if spec["scope"] == "Namespaced" else ""
        found[spec["names"]["kind"]] = (
            f"/apis/{spec['group']}/{version}{place}/{spec['names']['plural']}"
        )
    return found
