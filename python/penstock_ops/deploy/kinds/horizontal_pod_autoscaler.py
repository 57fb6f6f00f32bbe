"""HorizontalPodAutoscaler: scales replicas by queue length and KV usage, from custom metrics."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, ScalingFacts


def horizontal_pod_autoscaler(facts: Facts, scaling: ScalingFacts) -> dict[str, object]:
    """The autoscaler. It compares averages over the serving pods with thresholds; a metrics adapter
    in the cluster must provide these metrics.
    """
    version, kind = facts.workload
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": facts.name, "labels": facts.labels()},
        "spec": {
            "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": facts.name},
            "minReplicas": facts.replicas,
            "maxReplicas": scaling.most,
            "metrics": [
                _metric(scaling.waiting, scaling.waiting_most),
                _metric(scaling.kv_use, scaling.kv_most),
            ],
            "behavior": scaling.behavior,
        },
    }


def _metric(name: str, most: str) -> dict[str, object]:
    average = {"type": "AverageValue", "averageValue": most}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": average}}
