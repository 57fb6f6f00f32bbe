"""HTTPRoute: routes requests from the Gateway to the InferencePool, or to the Service."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.kinds.gateway import LISTENER, PLAIN
from penstock_ops.deploy.kinds.inference_pool import GROUP
from penstock_ops.deploy.parts import when
from penstock_ops.deploy.settings import PORT, Share

NEVER = "0s"
"""Timeout of the route: none, because a stream lasts as long as its answer. The default of a
Gateway is often 15 s.
"""


def http_route(facts: Facts, front: FrontFacts) -> dict[str, object]:
    """The route of the listener that the picker serves, with weights for a canary, and copies for
    a mirror.
    """
    # Without its name, the route would also serve the plain listener.
    parent = {"name": facts.gateway, "sectionName": when(front.has_plain, LISTENER)}
    rule: dict[str, object] = {"backendRefs": _pools(facts, front)}
    if front.mirror:
        rule["filters"] = [_copies(front.mirror)]
    return _route(facts, facts.name, parent, rule)


def plain_http_route(facts: Facts) -> dict[str, object]:
    """The route of the plain listener: the Gateway balances over the Service, without the picker.
    With the same requests on both listeners, it shows what the picker is worth.
    """
    parent = {"name": facts.gateway, "sectionName": PLAIN}
    rule = {"backendRefs": [{"name": facts.name, "port": PORT}]}
    return _route(facts, f"{facts.name}-plain", parent, rule)


def _pools(facts: Facts, front: FrontFacts) -> list[object]:
    if front.canary is None:
        return [_pool(facts.name)]
    share = front.canary.percent
    return [{**_pool(facts.name), "weight": 100 - share}, _pool(front.canary.name, share)]


def _pool(name: str, weight: int | None = None) -> dict[str, object]:
    found: dict[str, object] = {"group": GROUP, "kind": "InferencePool", "name": name}
    return found if weight is None else {**found, "weight": weight}


def _copies(mirror: Share) -> dict[str, object]:
    backend = {"name": mirror.name, "port": PORT}
    copied = {"backendRef": backend, "percent": mirror.percent}
    return {"type": "RequestMirror", "requestMirror": copied}


def _route(
    facts: Facts, name: str, parent: Mapping[str, object], rule: Mapping[str, object]
) -> dict[str, object]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "labels": facts.labels("gateway")},
        "spec": {
            "parentRefs": [parent],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    **rule,
                    "timeouts": {"request": NEVER},
                }
            ],
        },
    }
