"""Deployment: `penstock gateway` in front of the replicas, as a proxy or as an endpoint picker."""

from __future__ import annotations

from penstock_ops.deploy.engines.penstock import PROGRAM
from penstock_ops.deploy.facts import Facts, FrontFacts
from penstock_ops.deploy.kinds.gateway_config import CONFIG, CONFIG_FOLDER
from penstock_ops.deploy.kinds.placement import apart, scraped
from penstock_ops.deploy.parts import optional, when
from penstock_ops.deploy.probes import UNLISTING, http, secret, until_unlisted
from penstock_ops.deploy.resources import restricted, restricted_pod
from penstock_ops.deploy.settings import GATEWAY_PORT, PICKER_PORT

GATEWAYS = 2
"""Number of gateway pods, so that one may fail. All of them place prefixes on the replicas
consistently.
"""
CERTIFICATE = "/etc/penstock-tls"
DRAIN = 30


def gateway_deployment(facts: Facts, front: FrontFacts) -> dict[str, object]:
    """The Deployment. In a rollout, a new pod is ready before an old one ends, so that clients can
    always connect.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": facts.gateway, "labels": facts.labels("gateway")},
        "spec": {
            "replicas": GATEWAYS,
            "selector": {"matchLabels": facts.selector("gateway")},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": {
                "metadata": {
                    "labels": facts.labels("gateway"),
                    "annotations": when(facts.scraped, _annotations(facts, front)),
                },
                "spec": _spec(facts, front),
            },
        },
    }


def _annotations(facts: Facts, front: FrontFacts) -> dict[str, object]:
    scheme = {"prometheus.io/scheme": when(front.has_tls, "https")}
    return {**scraped(facts, str(GATEWAY_PORT)), **scheme}


def _spec(facts: Facts, front: FrontFacts) -> dict[str, object]:
    config = {"name": "config", "configMap": {"name": facts.gateway}}
    certificate = {"name": "certificate", "secret": {"secretName": front.tls_secret}}
    return {
        "enableServiceLinks": False,
        # The account's permissions are to list and watch; the gateway follows the pods with them.
        "serviceAccountName": facts.gateway,
        "terminationGracePeriodSeconds": UNLISTING + DRAIN + 10,
        "imagePullSecrets": optional(facts.pull_secrets),
        "securityContext": restricted_pod(),
        "topologySpreadConstraints": apart(facts, ["gateway"]),
        "containers": [_container(facts, front)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            when(front.proxies, config),
            when(front.has_tls, certificate),
        ],
    }


def _container(facts: Facts, front: FrontFacts) -> dict[str, object]:
    return {
        "name": "gateway",
        "image": front.image,
        "command": _command(facts, front),
        "env": _environment(facts),
        "ports": [
            {"name": "http", "containerPort": GATEWAY_PORT},
            when(front.picks, {"name": "grpc-ext-proc", "containerPort": PICKER_PORT}),
        ],
        "resources": {
            "limits": {"memory": "2Gi"},
            "requests": {"memory": "256Mi", "cpu": "250m"},
        },
        **_probes(front),
        **until_unlisted(),
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            when(front.proxies, {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}),
            when(
                front.has_tls, {"name": "certificate", "mountPath": CERTIFICATE, "readOnly": True}
            ),
        ],
    }


def _command(facts: Facts, front: FrontFacts) -> list[object]:
    return [
        *PROGRAM,
        "gateway",
        "--host=::",
        f"--port={GATEWAY_PORT}",
        f"--shutdown-timeout={DRAIN}",
        "--log-format=json",
        "--access-log",
        when(front.proxies, f"--config={CONFIG_FOLDER}/{CONFIG}"),
        when(front.picks, f"--inference-pool={facts.name}"),
        when(front.picks, f"--ext-proc=[::]:{PICKER_PORT}"),
        when(front.has_tls, f"--ssl-certfile={CERTIFICATE}/tls.crt"),
        when(front.has_tls, f"--ssl-keyfile={CERTIFICATE}/tls.key"),
    ]


def _environment(facts: Facts) -> list[object]:
    """Environment variables of the gateway. Clients send the API key to the gateway, and the
    gateway sends the same key to replicas.
    """
    keys = (
        secret(name, facts.api_key_secret, "api-key")
        for name in ("PENSTOCK_API_KEY", "PENSTOCK_BACKEND_API_KEY")
    )
    return [{"name": "HOME", "value": "/tmp"}, *(when(facts.has_key, key) for key in keys)]


def _probes(front: FrontFacts) -> dict[str, object]:
    """Probes of the gateway: it is ready if at least one replica is, and alive while its port
    accepts connections.
    """
    asked = {"path": "/ready", "port": "http", "scheme": when(front.has_tls, "HTTPS")}
    ready = {**http("/ready", "http", 1, 5), "httpGet": asked}
    alive = {"tcpSocket": {"port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    return {"readinessProbe": ready, "livenessProbe": alive}
