"""NetworkPolicy: from where the pods accept connections."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_ops.deploy.facts import INSTANCE, Facts, FrontFacts
from penstock_ops.deploy.parts import when
from penstock_ops.deploy.settings import GATEWAY_PORT, METRICS_PORT, PICKER_PORT, PORT

NAMESPACE = "kubernetes.io/metadata.name"
DATA_PLANES = (
    "gateway.networking.k8s.io/gateway-name",
    "gateway.envoyproxy.io/owning-gateway-name",
)
"""Labels by which a Gateway's controller marks the pods of its proxy: that of the Gateway API
(GEP-1762), and Envoy Gateway's.
"""


def network_policy(facts: Facts) -> dict[str, object]:
    """The policy of the serving pods. Among the deployment's own pods all ports are open: its
    gateway's, and those of ranks, which choose ports at run time. Others reach the metrics from the
    namespace of the monitoring, and the API from the proxies of Gateways; without a gateway from
    everywhere. Outgoing connections are not restricted.
    """
    own = {INSTANCE: facts.name}
    monitoring = {"namespaceSelector": {"matchLabels": {NAMESPACE: facts.monitoring}}}
    rules = [
        {"from": [_pods(own)]},
        {
            "from": [monitoring],
            "ports": [when(facts.own_metrics, _port(METRICS_PORT)), when(facts.shares_port, API)],
        },
        when(facts.direct, {"ports": [API]}),
        when(facts.picked, {"from": _proxies(), "ports": [API]}),
    ]
    return _policy(facts.name, facts.labels(), own, rules)


def _proxies() -> list[dict[str, object]]:
    """The pods of Gateways' proxies, in any namespace. A canary is behind the Gateway of another
    deployment, so the name of the Gateway does not matter.
    """
    return [
        {
            "namespaceSelector": {},
            "podSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
        }
        for label in DATA_PLANES
    ]


def _pods(labels: dict[str, str]) -> dict[str, object]:
    return {"podSelector": {"matchLabels": labels}}


def gateway_network_policy(facts: Facts, front: FrontFacts) -> dict[str, object]:
    """The policy of the gateway's pods. Their ports are open to everyone."""
    rule = {"ports": [_port(GATEWAY_PORT), when(front.picks, _port(PICKER_PORT))]}
    labels, selector = facts.labels("gateway"), facts.selector("gateway")
    return _policy(facts.gateway, labels, selector, [rule])


def _port(number: int) -> dict[str, object]:
    return {"port": number, "protocol": "TCP"}


API = _port(PORT)


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
