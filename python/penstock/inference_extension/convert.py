"""Migration of old resources to new kinds: InferencePool v1alpha1 and v1alpha2 become v1, and
InferenceObjective and InferenceModelRewrite replace InferenceModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from penstock.inference_extension.resources import Resource
from penstock.inference_extension.schema import CRITICALITIES, EXPERIMENTAL, STABLE

PICKER_PORT = 9002
"""Default port of the endpoint picker to which a pool refers."""


def converted(resources: Sequence[Resource]) -> str:
    """YAML of the new resources for the old ones among `resources`."""
    found: list[dict[str, Any]] = []
    for one in resources:
        if one.kind == "InferenceModel":
            found += _model(one)
        elif one.kind == "InferencePool" and one.version != STABLE:
            found.append(_pool(one))
    return yaml.safe_dump_all(found, sort_keys=False)


def _new(one: Resource, kind: str, version: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = one.document.content["metadata"]
    assert isinstance(metadata, dict)
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
    return {"apiVersion": version, "kind": kind, "metadata": kept, "spec": spec}


def _model(one: Resource) -> list[dict[str, Any]]:
    ref = {"name": one.pools[0]}
    priority = CRITICALITIES.get(one.spec.get("criticality", "Standard"), 0)
    objective = {"priority": priority, "poolRef": ref}
    found = [_new(one, "InferenceObjective", EXPERIMENTAL, objective)]
    targets = [
        {
            "modelRewrite": target["name"],
            **({"weight": target["weight"]} if "weight" in target else {}),
        }
        for target in one.spec.get("targetModels", [])
    ]
    if targets:
        match = {"model": {"type": "Exact", "value": one.spec["modelName"]}}
        spec = {"poolRef": dict(ref), "rules": [{"matches": [match], "targets": targets}]}
        found.append(_new(one, "InferenceModelRewrite", EXPERIMENTAL, spec))
    return found


def _pool(one: Resource) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "selector": {"matchLabels": dict(one.spec["selector"])},
        "targetPorts": [{"number": one.spec["targetPortNumber"]}],
    }
    if "extensionRef" in one.spec:
        old = dict(one.spec["extensionRef"])
        ports = [old.pop(key) for key in ("portNumber", "targetPortNumber") if key in old]
        port = {"number": ports[0] if ports else PICKER_PORT}
        spec["endpointPickerRef"] = {**old, "port": port}
    return _new(one, "InferencePool", STABLE, spec)
