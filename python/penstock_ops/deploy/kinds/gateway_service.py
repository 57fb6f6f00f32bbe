"""Service in front of `penstock gateway`: for clients if it is a proxy, for Envoy if it is an
endpoint picker.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.parts import optional, when
from penstock_ops.deploy.settings import GATEWAY_PORT, PICKER_PORT


def gateway_service(facts: Facts, front: FrontFacts) -> dict[str, object]:
    picker = {**_port("grpc-ext-proc", PICKER_PORT), "appProtocol": "http2"}
    ports = [_port("http", GATEWAY_PORT), when(front.picks, picker)]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": facts.gateway, "labels": facts.labels("gateway")},
        "spec": {
            "type": facts.service.type,
            "ipFamilyPolicy": facts.service.ip_policy,
            "ipFamilies": optional(facts.service.ip_families),
            "selector": facts.selector("gateway"),
            "ports": ports,
        },
    }


def _port(name: str, port: int) -> dict[str, object]:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
