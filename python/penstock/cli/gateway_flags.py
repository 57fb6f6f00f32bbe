"""Flags of `penstock gateway`."""

from __future__ import annotations

import argparse

from penstock.config import LOG_FORMATS, LOG_LEVELS

DESCRIPTION = (
    "Route requests of OpenAI clients to replicas: any OpenAI-compatible servers. A replica is "
    "picked by its load and by the prefixes that it has computed; a request whose replica fails "
    "before its first byte is sent to another one. With --config the settings come from a YAML "
    "file; flags win over it."
)
COMMON = (
    *("--backend", "--backends-file", "--inference-pool", "--config", "--host", "--port"),
    *("--ssl-certfile", "--ssl-keyfile", "--api-key", "--backend-api-key", "--access-log"),
    *("--profile", "--queue", "--retries", "--explain"),
)
"""Flags that `penstock gateway --help` shows; `--help-all` shows all flags."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    replicas = parser.add_argument_group("replicas")
    replicas.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="URL",
        help="a replica, such as http://10.0.0.1:8000; repeatable",
    )
    replicas.add_argument(
        "--backends-file",
        metavar="FILE",
        help="their URLs, one a line, or a JSON array; read again when it changes",
    )
    replicas.add_argument(
        "--backends-dns",
        metavar="NAME:PORT",
        help="every address of a name, looked up again and again",
    )
    replicas.add_argument(
        "--inference-pool",
        metavar="[NAMESPACE/]NAME",
        help="an InferencePool in Kubernetes: the ready pods that it selects, and the kinds for it "
        "(InferenceObjective, InferenceModelRewrite, InferenceModel)",
    )
    replicas.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the API server from outside the cluster (default: the files that "
        "KUBECONFIG names, else the service account of this pod)",
    )
    replicas.add_argument(
        "--config",
        metavar="FILE",
        help="YAML: pools, models, profiles (docs/gateway.md); read again when it changes",
    )
    _listener(parser.add_argument_group("listener"))
    _picker(parser.add_argument_group("endpoint picker"))
    _policy(parser.add_argument_group("policy"))


def _listener(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=int, help="0: any free one (default: 8080)")
    group.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead")
    group.add_argument(
        "--root-path", metavar="PATH", help="all endpoints are also below this path, as /llm"
    )
    group.add_argument("--ssl-certfile", metavar="FILE", help="PEM; read again when it changes")
    group.add_argument("--ssl-keyfile", metavar="FILE", help="key of --ssl-certfile")
    group.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="clients need one of these; the environment's PENSTOCK_API_KEY also counts",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="named keys with limits, JSON")
    group.add_argument(
        "--backend-api-key",
        metavar="KEY",
        help="key that replicas want; better in PENSTOCK_BACKEND_API_KEY",
    )
    group.add_argument(
        "--allowed-origins", action="append", metavar="ORIGIN", help="of pages that may use it"
    )
    group.add_argument("--no-ui", action="store_true", help="no web page at / for browsers")
    group.add_argument("--access-log", action="store_true", help="one line for each request")
    group.add_argument(
        "--otlp-traces-endpoint", metavar="URL", help="collector of traces: http://HOST:4318"
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, help="this level and worse")
    group.add_argument("--log-format", choices=LOG_FORMATS, help="of a line of the log")
    group.add_argument("--threads", type=int, metavar="N", help="that serve (default: 1)")


def _picker(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ext-proc",
        metavar="HOST:PORT",
        help="also tell an Envoy there, by its external processing protocol, where its requests "
        "go; with the certificate of --ssl-certfile",
    )
    group.add_argument(
        "--pool",
        metavar="NAME",
        help="the only pool that --ext-proc picks from; also the name of the pool of --backend",
    )


def _policy(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        metavar="FILE",
        help="filters, scorers with weights and picker of the pool of --backend, YAML or JSON",
    )
    group.add_argument(
        "--queue",
        action="store_true",
        help="requests wait while every replica of the pool of --backend is saturated: by "
        "priority, and fair between tenants (default: they are sent on)",
    )
    group.add_argument(
        "--hedge",
        metavar="MS|pNN",
        help="in the pool of --backend, send a stream to a second replica too if it has no output "
        "after MS milliseconds, or after percentile NN of recent first outputs (default: never)",
    )
    group.add_argument(
        "--retries",
        type=int,
        metavar="N",
        help="further replicas for a request that fails before its first byte (default: 2)",
    )
    group.add_argument(
        "--resume-timeout",
        type=float,
        metavar="S",
        help="time in which a stream whose replica dies may find another, 0: none (default: 10)",
    )
    group.add_argument(
        "--resume-bytes",
        type=int,
        metavar="N",
        help="of requests that are kept for that; streams beyond them have no failover "
        "(default: 256 MiB)",
    )
    group.add_argument(
        "--resume-by-text",
        action="store_true",
        help="streams of servers other than Penstock go on, too: by their text, which is not exact",
    )
    group.add_argument(
        "--max-requests", type=int, metavar="N", help="open at once; more get 429 (default: 10000)"
    )
    group.add_argument(
        "--max-request-bytes", type=int, metavar="N", help="of a body (default: 20 MiB)"
    )
    group.add_argument(
        "--shutdown-timeout",
        type=float,
        metavar="S",
        help="time that open requests get after SIGTERM (default: 30)",
    )
    group.add_argument(
        "--explain", action="store_true", help="x-penstock-decision says why a replica was picked"
    )
    group.add_argument(
        "--replica-header",
        choices=("address", "name", "none"),
        help="x-penstock-replica: the address (default), the label `name` or a hash, or no header",
    )
