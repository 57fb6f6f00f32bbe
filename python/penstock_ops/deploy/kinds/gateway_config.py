"""ConfigMap with gateway.yaml for `penstock gateway` as a proxy. Its replicas are the
serving pods.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.facts import INSTANCE, Facts, FrontFacts
from penstock_ops.deploy.parts import Quoted
from penstock_ops.deploy.settings import PORT, Share

CONFIG = "gateway.yaml"
CONFIG_FOLDER = "/etc/penstock"


def gateway_config(facts: Facts, front: FrontFacts) -> dict[str, object]:
    """The ConfigMap. It selects the pods by labels, so no InferencePool is needed. The pods of a
    canary or mirror are selected by the same labels with that deployment's name.
    """
    others = [share for share in (front.canary, front.mirror) if share]
    own: dict[str, object] = _pool(facts.selector())
    if front.mirror:
        own["mirror"] = {"pool": front.mirror.name, "share": front.mirror.percent / 100}
    pools = {facts.name: own}
    for share in others:
        pools[share.name] = _pool({**facts.selector(), INSTANCE: share.name})
    content: dict[str, object] = {
        "pools": [{"name": Quoted(name), **pool} for name, pool in pools.items()]
    }
    if front.canary:
        content["models"] = [{"name": Quoted("*"), "targets": _targets(facts.name, front.canary)}]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": facts.gateway, "labels": facts.labels("gateway")},
        "data": {CONFIG: dump(content)},
    }


def _pool(labels: Mapping[str, str]) -> dict[str, object]:
    selector = {key: Quoted(value) for key, value in labels.items()}
    return {"kubernetes": {"selector": selector, "ports": [PORT]}}


def _targets(name: str, canary: Share) -> list[dict[str, object]]:
    return [
        {"pool": name, "weight": 100 - canary.percent},
        {"pool": canary.name, "weight": canary.percent},
    ]
