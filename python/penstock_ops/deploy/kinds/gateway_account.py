"""ServiceAccount of `penstock gateway`, which may list and watch pods and custom resources."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.parts import when

KINDS = (
    ("inference.networking.k8s.io", ["inferencepools"]),
    (
        "inference.networking.x-k8s.io",
        ["inferencepools", "inferenceobjectives", "inferencemodelrewrites", "inferencemodels"],
    ),
    ("llm-d.ai", ["inferenceobjectives", "inferencemodelrewrites"]),
)
"""(API group, plural names) of the custom resources of the inference extension."""
ACCESS = "rbac.authorization.k8s.io"


def gateway_account(facts: Facts) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(facts)}


def gateway_role(facts: Facts, front: FrontFacts) -> dict[str, object]:
    """The gateway's permissions. As a proxy it watches only pods; as an endpoint picker, also the
    custom resources in KINDS.
    """
    return {
        "apiVersion": f"{ACCESS}/v1",
        "kind": "Role",
        "metadata": _metadata(facts),
        "rules": [
            _followed("", ["pods"]),
            *(when(front.picks, _followed(group, plurals)) for group, plurals in KINDS),
        ],
    }


def _followed(group: str, plurals: list[str]) -> dict[str, object]:
    return {"apiGroups": [group], "resources": plurals, "verbs": ["list", "watch"]}


def gateway_role_binding(facts: Facts) -> dict[str, object]:
    return {
        "apiVersion": f"{ACCESS}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(facts),
        "roleRef": {"apiGroup": ACCESS, "kind": "Role", "name": facts.gateway},
        "subjects": [{"kind": "ServiceAccount", "name": facts.gateway}],
    }


def _metadata(facts: Facts) -> dict[str, object]:
    return {"name": facts.gateway, "labels": facts.labels("gateway")}
