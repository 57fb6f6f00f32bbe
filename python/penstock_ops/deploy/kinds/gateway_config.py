"""ConfigMap with gateway.yaml for `penstock gateway` as a proxy. Its replicas are the
serving pods.
"""

from __future__ import annotations

from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.parts import Quoted
from penstock_ops.deploy.settings import PORT

CONFIG = "gateway.yaml"
CONFIG_FOLDER = "/etc/penstock"


def gateway_config(facts: Facts) -> dict[str, object]:
    """The ConfigMap. It selects the pods by labels, so no InferencePool is needed."""
    selector = {key: Quoted(value) for key, value in facts.selector().items()}
    pods = {"selector": selector, "ports": [PORT]}
    content = {"pools": [{"name": Quoted(facts.name), "kubernetes": pods}]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": facts.gateway, "labels": facts.labels("gateway")},
        "data": {CONFIG: dump(content)},
    }
