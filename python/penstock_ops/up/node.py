"""One node's side of `penstock up PLAN HOST...`: the agent of `penstock verify`, which also starts
the node's ranks. They end with their coordinator, however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.config.forms import members, rows, text, truth
from penstock.core import PenstockError
from penstock.hub import locate
from penstock.model.sizing import parameters
from penstock_lab.bench.compare.processes import Meter, ProcessTree, uninterrupted
from penstock_lab.bench.compare.server_under_test import answers, log_tail
from penstock_ops.plan.serving import without_settings
from penstock_ops.plan.subject import read_subject
from penstock_ops.up.server import ending_signals
from penstock_ops.up.subject import directory_of
from penstock_ops.verify.between.agent import (
    OPERATIONS,
    PORT,
    Agent,
    Operation,
    own_address,
)
from penstock_ops.verify.between.channel import Channel, standard_channel

SILENCE = 60.0
"""Seconds without a request after which a node ends its ranks: the connection to the coordinator is
lost, though nothing has closed it. A coordinator sends one every second.
"""
TOKEN_FILE, KEYS_FILE, LOG_FILE = "token", "keys.json", "server.log"


class NodeServer:
    """The processes of this node: the plan's server, or the ranks that it has here. The log and the
    secrets are in a directory that only their user can read.
    """

    def __init__(self) -> None:
        self.model: Path | None = None
        self._lock = threading.Lock()
        self._tree: ProcessTree | None = None
        self._meter: Meter | None = None
        self._directory: Path | None = None
        self._has_ended = False

    @property
    def is_started(self) -> bool:
        return self._tree is not None

    def start(self, flags: Sequence[str], token: str, api_key: str) -> None:
        """Start `penstock serve` with `flags` for the model that was found. PenstockError if that
        is not possible.
        """
        with uninterrupted(), self._lock:
            if self.model is None or self._tree or self._has_ended:
                raise PenstockError("a server starts once, after its model was found")
            self._directory = Path(tempfile.mkdtemp(prefix="penstock-up-"))
            secrets = self._secrets(self._directory, token, api_key)
            # A server outlives no agent, not even one that is killed.
            child = [sys.executable, "-P", "-m", "penstock.cli.child", str(os.getpid())]
            words = [*without_settings(), *child, "serve", str(self.model), *flags, *secrets]
            cpus = sorted(os.sched_getaffinity(0))
            self._tree = ProcessTree(words, {}, self._directory / LOG_FILE, cpus)

    def _secrets(self, directory: Path, token: str, api_key: str) -> list[str]:
        """Write the secrets to files; returns the flags that name these."""
        flags = []
        if token:
            (directory / TOKEN_FILE).write_text(token)
            flags.append(f"--cluster-token-file={directory / TOKEN_FILE}")
        if api_key:
            keys = {"keys": [{"name": "up", "key": api_key}]}
            (directory / KEYS_FILE).write_text(json.dumps(keys))
            flags.append(f"--api-key-file={directory / KEYS_FILE}")
        return flags

    def state(self, ready_url: str) -> dict[str, Any]:
        """Whether the process runs, and answers at `ready_url`, if that is given."""
        tree, log = self._started()
        status = tree.root.poll()
        return {
            "status": status,
            "is_ready": status is None and bool(ready_url) and answers(ready_url),
            "log": str(log),
            "tail": log_tail(log),
        }

    def measure(self) -> None:
        self._meter = Meter(self._started()[0])

    def foreign_share(self) -> float:
        """Share of this host's processor time (0 to 1) that other programs used since `measure`."""
        if self._meter is None:
            raise PenstockError("nothing was measured")
        return self._meter.read()["foreign_share"]

    def end(self, *, keep_log: bool = False) -> None:
        """End all processes, and remove the secrets. Idempotent."""
        with uninterrupted(), self._lock:
            self._has_ended = True
            if self._tree:
                self._tree.end()
            if self._directory and keep_log:
                for name in (TOKEN_FILE, KEYS_FILE):
                    (self._directory / name).unlink(missing_ok=True)
            elif self._directory:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _started(self) -> tuple[ProcessTree, Path]:
        if self._tree is None or self._directory is None:
            raise PenstockError("no server runs")
        return self._tree, self._directory / LOG_FILE


class WatchedChannel:
    """A channel whose silence counts as its end once a server was started."""

    def __init__(self, channel: Channel, server: NodeServer) -> None:
        self._channel = channel
        self._server = server

    def send(self, message: Mapping[str, Any]) -> None:
        self._channel.send(message)

    def receive(self, seconds: float | None) -> dict[str, Any]:
        return self._channel.receive(SILENCE if self._server.is_started else seconds)

    def close(self) -> None:
        self._channel.close()


def serve_node() -> int:
    """Be the agent of this node, over standard input and output, until they close."""
    server = NodeServer()

    def stop() -> None:
        server.end()
        os._exit(0)

    with ending_signals():
        try:
            channel = WatchedChannel(standard_channel(stop), server)
            Agent(channel, own_address(), operations=operations_of(server)).run()
        finally:
            server.end()
    return 0


# Operations ---------------------------------------------------------------------------------------


def operations_of(server: NodeServer) -> Mapping[str, Operation]:
    """The operations of an agent of `penstock verify`, and those of a server."""

    def find_model(_agent: Agent, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Place and number of parameters of a model on this host. Nothing is downloaded."""
        path = locate(arguments["model"], download=False).path
        size = parameters(read_subject(str(path)).spec)
        server.model = path
        return {"path": str(path), "directory": directory_of(path), "parameters": size}

    def serve(agent: Agent, arguments: Mapping[str, Any]) -> list[int]:
        """Start, unless ports are in use: the result is these."""
        for listener in agent.listeners:
            listener.close()
        if taken := [port for port in arguments["ports"] if _is_taken(port)]:
            return taken
        server.start(arguments["flags"], arguments["token"], arguments["api_key"])
        return []

    return {
        **OPERATIONS,
        "find_model": Operation(members({"model": text()}), find_model),
        "serve": Operation(SERVE, serve),
        "server_state": Operation(
            members({"ready_url": text(empty=True)}),
            lambda _agent, arguments: server.state(arguments["ready_url"]),
        ),
        "measure": Operation(members({}), lambda _agent, _arguments: server.measure()),
        "foreign_share": Operation(members({}), lambda _agent, _arguments: server.foreign_share()),
        "end_server": Operation(
            members({"keep_log": truth}),
            lambda _agent, arguments: server.end(keep_log=arguments["keep_log"]),
        ),
    }


SECRET = text("0123456789abcdef", empty=True)
SERVE = members(
    {"flags": rows(text()), "token": SECRET, "api_key": SECRET, "ports": rows(PORT)},
)


def _is_taken(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return True
    return False
