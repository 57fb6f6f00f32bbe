"""NetworkPolicy: from where the pods accept connections."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.parts import when
from penstock_ops.deploy.settings import GATEWAY_PORT, METRICS_PORT, PICKER_PORT, PORT


def network_policy(facts: Facts) -> dict[str, object]:
    """The policy of the serving pods. Their serving ports are open to everyone. Among the
    deployment's own pods all ports are open, because ranks and stages choose ports at run time.
    Outgoing connections are not restricted.
    """
    own = {"app.kubernetes.io/instance": facts.name}
    rules = [
        {"ports": [_port(PORT), when(facts.own_metrics, _port(METRICS_PORT))]},
        when(facts.grouped, {"from": [{"podSelector": {"matchLabels": own}}]}),
    ]
    return _policy(facts.name, facts.labels(), own, rules)


def gateway_network_policy(facts: Facts, front: FrontFacts) -> dict[str, object]:
    """The policy of the gateway's pods. Their ports are open to everyone."""
    rule = {"ports": [_port(GATEWAY_PORT), when(front.picks, _port(PICKER_PORT))]}
    labels, selector = facts.labels("gateway"), facts.selector("gateway")
    return _policy(facts.gateway, labels, selector, [rule])


def _port(number: int) -> dict[str, object]:
    return {"port": number, "protocol": "TCP"}


def _policy(
    name: str, labels: dict[str, str], pods: dict[str, str], rules: Sequence[object]
) -> dict[str, object]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }
