"""Service: one address in front of the serving pods."""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.parts import optional
from penstock_ops.deploy.settings import PORT


def service(facts: Facts) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": facts.name, "labels": facts.labels()},
        "spec": {
            "type": facts.service.server_type,
            "ipFamilyPolicy": facts.service.server_ip_policy,
            "ipFamilies": optional(facts.service.ip_families),
            "selector": facts.selector(),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
