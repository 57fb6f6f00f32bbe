"""ScaledObject: KEDA scales replicas by queue length and KV usage, from Prometheus."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, ScalingFacts

POLLING = 15


def scaled_object(facts: Facts, scaling: ScalingFacts) -> dict[str, object]:
    """The ScaledObject. It never scales to zero, because a new replica needs the planned load time
    before it serves.
    """
    version, kind = facts.workload
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": facts.name, "labels": facts.labels()},
        "spec": {
            "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": facts.name},
            "minReplicaCount": facts.replicas,
            "maxReplicaCount": scaling.most,
            "pollingInterval": POLLING,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": scaling.behavior}},
            "triggers": [
                _trigger(facts, scaling, scaling.waiting, scaling.waiting_most),
                _trigger(facts, scaling, scaling.kv_use, scaling.kv_most),
            ],
        },
    }


def _trigger(facts: Facts, scaling: ScalingFacts, metric: str, threshold: str) -> dict[str, object]:
    """A trigger of KEDA: the sum of a metric over all replicas, divided by the threshold for one
    replica, is the wanted number of replicas.
    """
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": scaling.prometheus,
            "query": f'sum({metric}{{pod=~"{facts.name}-.+",container="engine"}})',
            "threshold": threshold,
        },
    }
