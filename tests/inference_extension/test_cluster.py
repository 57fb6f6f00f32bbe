"""Resources of a cluster as rules of a gateway."""

from __future__ import annotations

import json
from typing import Any

from penstock.inference_extension import Rules, cluster_rules

STABLE = "inference.networking.k8s.io/v1"
EXPERIMENTAL = "inference.networking.x-k8s.io/v1alpha2"
POOLS = {("models", "llama"): "chat", ("other", "llama"): "second"}


def resource(kind: str, name: str, spec: dict[str, Any], **metadata: object) -> dict[str, Any]:
    version = STABLE if kind == "InferencePool" else EXPERIMENTAL
    about = {"name": name, "namespace": "models", **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": about, "spec": spec}


def objective(name: str, priority: int, **spec: object) -> dict[str, Any]:
    return resource("InferenceObjective", name, {"priority": priority, **spec})


def rewrite(name: str, pool: str, created: str, **metadata: object) -> dict[str, Any]:
    match = {"model": {"type": "Exact", "value": "chat"}}
    rules = [{"matches": [match], "targets": [{"modelRewrite": name}]}]
    spec = {"poolRef": {"name": pool}, "rules": rules}
    return resource("InferenceModelRewrite", name, spec, creationTimestamp=created, **metadata)


def rules(*resources: dict[str, Any]) -> Rules:
    return cluster_rules(json.dumps(resources), POOLS)


def test_rules_are_those_of_the_gateway_s_pools() -> None:
    found = rules(
        rewrite("new", "llama", "2026-02-01T00:00:00Z"),
        rewrite("old", "llama", "2026-01-01T00:00:00Z"),
        rewrite("elsewhere", "mistral", "2025-01-01T00:00:00Z"),
        rewrite("there", "llama", "2025-01-01T00:00:00Z", namespace="nowhere"),
        objective("batch", -1, poolRef={"name": "llama"}),
        objective("mixed", 3, poolRefs=[{"name": "mistral"}, {"name": "llama"}]),
        objective("theirs", 4, poolRef={"name": "mistral"}),
    )
    targets = [{"pool": "chat", "model": "old", "weight": 1}]
    assert found.models == [{"name": "chat", "targets": targets}]
    assert found.objectives == [
        {"name": "batch", "pool": "chat", "priority": -1},
        {"name": "mixed", "pool": "chat", "priority": 3},
    ]
    texts = [str(one) for one in found.findings]
    assert len(texts) == 1
    assert texts[0].startswith("namespace models: warning: InferenceModelRewrite new: ")
    assert "old is older" in texts[0]


def test_labels_of_pools_choose_objectives() -> None:
    spec = {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 1}]}
    gold = {"matchLabels": {"tier": "gold"}}
    old = {"apiVersion": EXPERIMENTAL, "spec": {"selector": {}, "targetPortNumber": 1}}
    found = rules(
        resource("InferencePool", "llama", spec, labels={"tier": "gold"}),
        resource("InferencePool", "llama", {}, labels={"tier": "lead"}) | old,
        objective("gold", 5, poolSelector=gold),
        objective("lead", 6, poolSelector={"matchLabels": {"tier": "lead"}}),
        objective("all", 7, poolSelector={}),
    )
    assert found.objectives == [
        {"name": "gold", "pool": "chat", "priority": 5},
        {"name": "all", "priority": 7},
    ]
    assert not found.findings


def test_what_is_wrong_is_left_out_and_said() -> None:
    good = objective("batch", -1, poolRef={"name": "llama"})
    odd = objective("later", 2, poolRef={"name": "llama"}, horizon=3)
    found = rules(
        objective("wrong", "high", poolRef={"name": "llama"}),  # type: ignore[arg-type]
        resource("InferenceModel", "m", {"poolRef": {"name": "llama"}}),
        good,
        odd,
    )
    assert [one["name"] for one in found.objectives] == ["batch", "later"]
    texts = " ".join(map(str, found.findings))
    assert not any(one.wrong for one in found.findings)
    assert "spec.priority is 'high'" in texts
    assert "spec has no modelName" in texts
    assert "spec has no member 'horizon'" in texts


def test_each_namespace_has_its_own_pools() -> None:
    here = objective("batch", -1, poolRef={"name": "llama"})
    there = objective("batch", -2, poolRef={"name": "llama"})
    there["metadata"]["namespace"] = "other"
    assert rules(here, there).objectives == [
        {"name": "batch", "pool": "chat", "priority": -1},
        {"name": "batch", "pool": "second", "priority": -2},
    ]
