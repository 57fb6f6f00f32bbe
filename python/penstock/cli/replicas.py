"""`penstock serve MODEL --replicas N`: N servers of one model on this host, with a gateway in front
of them.

Each replica is `penstock serve` on a loopback port, with the given flags except those of the
listener, which are the gateway's. A replica is killed when this process ends, and is restarted if
it ends by itself.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict

from penstock import __version__
from penstock.cli.arguments import settings
from penstock.cli.gateway import run_gateway
from penstock.cli.local_server import HOST, stop, wait_until_ready
from penstock.config import (
    FLAGS,
    Config,
    Flag,
    notify_socket,
    replica_environment,
    runtime_directory,
)
from penstock.config.kinds import Switch, negative
from penstock.config.machine import free_port
from penstock.core import InvalidValueError

RESTART_PAUSE = 1.0
"""Seconds between the end of a replica and its restart."""
GATEWAYS_OWN = frozenset(
    (
        *("host", "port", "uds", "ssl_certfile", "ssl_keyfile", "access_log", "log_level"),
        *("api_key", "api_key_file", "allowed_origins", "replicas", "threads"),
    )
)
"""Settings that apply to the gateway instead of the replicas, or (threads) are divided
among them.
"""


def serve_replicas(parsed: argparse.Namespace, model: str, config: Config) -> int:
    """Run gateway and replicas until a signal ends them; returns the gateway's exit status after
    its drain.
    """
    server = config.server
    for name, value in (
        ("--metrics-port", server.metrics_port),
        ("--admin-api-key", server.admin_api_key),
    ):
        if value is not None:
            raise InvalidValueError("--replicas", server.replicas, f"1, with {name}")
    if config.engine.cache.events is not None:
        raise InvalidValueError("--replicas", server.replicas, "1, with --kv-events-config")
    if config.engine.parallel.nnodes > 1:
        raise InvalidValueError("--replicas", server.replicas, "1, with --nnodes")
    key = secrets.token_hex(16)
    threads = max(1, config.engine.compute.threads // server.replicas)
    # Replicas do not log their readiness, so that only the gateway's line is shown.
    level = "warning" if config.engine.log.level == "info" else config.engine.log.level
    flags = ["--host", HOST, "--threads", str(threads), "--replicas", "1", "--log-level", level]
    flags += words_of(settings(parsed))
    if parsed.config is not None:
        flags += ["--config", parsed.config]
    from penstock._native import PrivateDirectory

    # Directory for the replicas' sockets. A leftover directory is removed by the next start.
    runtime = PrivateDirectory(runtime_directory() or tempfile.gettempdir())
    replicas = [Replica(model, flags, key, str(runtime.path)) for _ in range(server.replicas)]
    try:
        for replica in replicas:
            replica.start()
        for replica in replicas:
            replica.wait_until_ready()
        for replica in replicas:
            replica.keep_running()
        return run_gateway(gateway_settings(config, [replica.url for replica in replicas], key))
    finally:
        for replica in replicas:
            replica.end()
        shutil.rmtree(runtime.path, ignore_errors=True)


def words_of(given: dict[str, tuple[str, ...]]) -> list[str]:
    """Command line words for these settings, without the settings that apply only to the
    gateway.
    """
    by_key: dict[str, Flag] = {flag.key: flag for flag in FLAGS}
    words = []
    for key, values in given.items():
        if key in GATEWAYS_OWN:
            continue
        name = by_key[key].name
        for value in values:
            if isinstance(by_key[key].kind, Switch):
                words.append(name if value == "true" else negative(name))
            else:
                words += [name, value]
    return words


def gateway_settings(config: Config, urls: list[str], key: str) -> dict[str, object]:
    """Configuration of `crates/gateway/gateway` in front of local replicas."""
    server = config.server
    return {
        "host": server.host,
        "port": server.port,
        "uds": server.uds,
        "tls": server.ssl_certfile
        and {"certificate": server.ssl_certfile, "key": server.ssl_keyfile},
        "api_keys": list(server.api_keys),
        "api_key_file": server.api_key_file,
        "backend_api_key": key,
        "allowed_origins": list(server.allowed_origins),
        "ui": server.ui,
        "access_log": server.access_log,
        "otlp_traces_endpoint": server.otlp_traces_endpoint,
        "pools": [
            {
                "name": server.served_model_names[0],
                "source": {"static": [{"url": url} for url in urls]},
            }
        ],
        "limits": {"max_body_bytes": server.max_request_bytes},
        "drain_timeout_s": server.shutdown_timeout,
        "log": asdict(config.engine.log),
        "notify_socket": notify_socket(),
        "version": __version__,
    }


class Replica:
    """One server, restarted whenever it ends before `end` is called."""

    def __init__(self, model: str, flags: list[str], key: str, runtime: str) -> None:
        self._port = free_port()
        starter = str(os.getpid())
        command = [sys.executable, "-P", "-m", "penstock.cli.child", starter, "serve", model]
        self._command = [*command, "--port", str(self._port), *flags]
        self._environment = replica_environment(key, runtime)
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            # A separate session, so that only the gateway gets the terminal's signals. The gateway
            # drains before the replicas end.
            self._command,
            env=self._environment,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        assert self._process is not None
        wait_until_ready(self._process, self._port)

    def keep_running(self) -> None:
        threading.Thread(target=self._watch, name="replica", daemon=True).start()

    def _watch(self) -> None:
        assert self._process is not None
        while True:
            status = self._process.wait()
            if self._ending.wait(RESTART_PAUSE):
                return
            print(f"penstock: {self.url} ended with status {status}: restarted", file=sys.stderr)
            with self._lock:
                if self._ending.is_set():
                    return
                self.start()

    def end(self) -> None:
        with self._lock:
            self._ending.set()
        if self._process is not None:
            stop(self._process)
