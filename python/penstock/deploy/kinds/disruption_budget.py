"""PodDisruptionBudget: node drains take one replica at a time."""

from __future__ import annotations

from penstock.deploy.settings import Settings


def disruption_budget(settings: Settings) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": settings.name, "labels": settings.labels()},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": settings.leader()}},
    }
