"""PodMonitor: tells the Prometheus operator which pods to scrape."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.parts import when


def pod_monitor(facts: Facts) -> dict[str, object]:
    endpoint: dict[str, object] = {"port": facts.metrics_port}
    return _monitor(facts.name, facts.labels(), facts.selector(), endpoint)


def gateway_pod_monitor(facts: Facts, front: FrontFacts) -> dict[str, object]:
    endpoint: dict[str, object] = {
        "port": "http",
        "scheme": when(front.has_tls, "https"),
        # Do not verify the certificate: Prometheus connects to pod addresses, which it does not
        # list.
        "tlsConfig": when(front.has_tls, {"insecureSkipVerify": True}),
    }
    labels, selector = facts.labels("gateway"), facts.selector("gateway")
    return _monitor(facts.gateway, labels, selector, endpoint)


def _monitor(
    name: str, labels: dict[str, str], pods: dict[str, str], endpoint: dict[str, object]
) -> dict[str, object]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": {"matchLabels": pods},
            "podMetricsEndpoints": [{**endpoint, "path": "/metrics"}],
        },
    }
