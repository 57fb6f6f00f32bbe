"""Gateway (of the Gateway API): entry point for clients. A third-party controller, chosen by its
class, runs it.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.parts import when

LISTENER, PLAIN = "http", "plain"
"""Names of the listener whose route asks the picker, and of the one that balances without it."""


def gateway(facts: Facts, front: FrontFacts) -> dict[str, object]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": facts.gateway, "labels": facts.labels("gateway")},
        "spec": {
            "gatewayClassName": front.gateway_class,
            "listeners": [
                {"name": LISTENER, "port": front.port, "protocol": "HTTP"},
                when(
                    front.has_plain,
                    {"name": PLAIN, "port": front.plain_port, "protocol": "HTTP"},
                ),
            ],
        },
    }
