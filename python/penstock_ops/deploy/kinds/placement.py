"""Parts of pods by which the cluster's scheduler and Prometheus know them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_ops.deploy.facts import INSTANCE, Facts
from penstock_ops.deploy.parts import Data, Quoted, when

ZONES = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
"""Labels of nodes over which pods are spread: a failure of one takes few replicas."""


def apart(facts: Facts, roles: list[str]) -> list[dict[str, object]]:
    """Topology spread constraints for the pods with these roles. They are preferences: a cluster
    that has only one node, or one with enough devices, still runs all pods.
    """
    pods = {
        "matchLabels": {INSTANCE: facts.name},
        "matchExpressions": [
            {"key": "app.kubernetes.io/component", "operator": "In", "values": roles}
        ],
    }
    return [
        {
            "maxSkew": 1,
            "topologyKey": zone,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": pods,
        }
        for zone in ZONES
    ]


def scraped(facts: Facts, port: Data) -> Mapping[str, object]:
    """Annotations by which a Prometheus without an operator finds the pod's metrics."""
    found: dict[str, object] = {
        "prometheus.io/scrape": Quoted("true"),
        "prometheus.io/port": port,
        "prometheus.io/path": "/metrics",
    }
    return {key: when(facts.scraped, value) for key, value in found.items()}
