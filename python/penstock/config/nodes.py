"""Settings for one engine on several hosts without Ray: number of this node, address of node 0,
shared secret.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config.flags import MASTER_PORT
from penstock.core import InvalidValueError, PenstockError

TOKEN = "PENSTOCK_CLUSTER_TOKEN"
LEAST_TOKEN = 16
"""Minimum number of characters of the shared secret. It must be hard to guess, because a recorded
handshake allows guesses offline.
"""
PURPOSE = b"penstock cluster"


def resolve_nodes(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ParallelConfig` about nodes. Raises InvalidValueError for flags that do not
    fit together.
    """
    nnodes, node_rank = values["nnodes"], values["node_rank"]
    if nnodes == 1:
        if node_rank:
            raise InvalidValueError("--node-rank", node_rank, "0, or --nnodes above it")
        return {}
    tp, pp = values["tensor_parallel_size"], values["pipeline_parallel_size"]
    if nnodes > tp * pp:
        limit = (
            f"at most {tp * pp}, the ranks (--tensor-parallel-size {tp} x "
            f"--pipeline-parallel-size {pp}): a node holds one or more"
        )
        raise InvalidValueError("--nnodes", nnodes, limit)
    if values["distributed_executor_backend"] in ("inline", "ray"):
        backend = values["distributed_executor_backend"]
        raise InvalidValueError(
            "--distributed-executor-backend", backend, f"mp for --nnodes {nnodes}"
        )
    if node_rank is None or node_rank >= nnodes:
        raise InvalidValueError("--node-rank", node_rank, f"an integer in 0..{nnodes - 1}")
    if values["master_addr"] is None:
        raise PenstockError(
            f"--nnodes {nnodes} needs --master-addr: where node 0 is, the same on all nodes"
        )
    host, port = split_address(values["master_addr"])
    master = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    fields = {"nnodes": nnodes, "node_rank": node_rank, "master": master}
    fields["join_timeout"] = values["distributed_timeout_seconds"]
    return {**fields, "token_file": values["cluster_token_file"]}


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT, [HOST] or [HOST]:PORT. A host that contains colons is an
    IPv6 address.
    """
    host, port = text, ""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        if not closed or (rest and not rest.startswith(":")):
            host = ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = int(port) if port.isdecimal() else 0 if port else MASTER_PORT
    if not host or not 1 <= number <= 65535:
        raise InvalidValueError("--master-addr", text, "HOST or HOST:PORT, [HOST]:PORT for IPv6")
    return host, number


def cluster_key(token_file: str | None, environ: Mapping[str, str] = os.environ) -> bytes:
    """The 32-byte key that authenticates the nodes' streams, derived from their shared secret.
    Raises PenstockError if the secret is missing or too short.
    """
    if token_file is not None:
        try:
            token, place = (
                Path(token_file).read_text().strip(),
                f"--cluster-token-file {token_file}",
            )
        except (OSError, UnicodeDecodeError) as error:
            raise PenstockError(f"--cluster-token-file {token_file}: {error}") from error
    else:
        token, place = environ.get(TOKEN, "").strip(), TOKEN
    if not token:
        raise PenstockError(
            "several nodes need a secret that all of them share, so that no other host joins: put "
            f"one into a file for --cluster-token-file, or into {TOKEN} (openssl rand -hex 32)"
        )
    if len(token) < LEAST_TOKEN:
        raise PenstockError(f"{place}: {len(token)} characters, expected {LEAST_TOKEN} or more")
    return hashlib.blake2b(token.encode(), digest_size=32, person=PURPOSE).digest()
