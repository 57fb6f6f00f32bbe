"""PodDisruptionBudget: if nodes are drained, only one replica may be down at a time."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts


def disruption_budget(facts: Facts) -> dict[str, object]:
    return _budget(facts.name, facts.labels(), facts.selector())


def gateway_disruption_budget(facts: Facts) -> dict[str, object]:
    return _budget(facts.gateway, facts.labels("gateway"), facts.selector("gateway"))


def _budget(name: str, labels: dict[str, str], pods: dict[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": labels},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": pods}},
    }
