"""HTTPRoute: routes requests from the Gateway to the InferencePool."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.kinds.inference_pool import GROUP

NEVER = "0s"
"""Timeout of the route: none, because a stream lasts as long as its answer. The default of a
Gateway is often 15 s.
"""


def http_route(facts: Facts) -> dict[str, object]:
    pool = {"group": GROUP, "kind": "InferencePool", "name": facts.name}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": facts.name, "labels": facts.labels("gateway")},
        "spec": {
            "parentRefs": [{"name": facts.gateway}],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    "backendRefs": [pool],
                    "timeouts": {"request": NEVER},
                }
            ],
        },
    }
