"""Gateway (of the Gateway API): entry point for clients. A third-party controller, chosen by its
class, runs it.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts


def gateway(facts: Facts, front: FrontFacts) -> dict[str, object]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": facts.gateway, "labels": facts.labels("gateway")},
        "spec": {
            "gatewayClassName": front.gateway_class,
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        },
    }
