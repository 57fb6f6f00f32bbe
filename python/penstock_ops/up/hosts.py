"""The server of a plan on hosts: ranks that their agents start, waited for, watched and ended."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.config.flags import MASTER_PORT
from penstock.config.forms import Form, count, members, number, or_null, rows, text, truth
from penstock.core import PenstockError
from penstock.executor.ranks import join_address
from penstock_lab.bench.compare.processes import uninterrupted
from penstock_lab.bench.compare.server_under_test import answers, exit_text
from penstock_ops.deploy.hosts import node_flags
from penstock_ops.deploy.settings import Settings
from penstock_ops.top.exposition import Page
from penstock_ops.up.server import metrics_of
from penstock_ops.up.subject import size_error
from penstock_ops.verify.between.agent import PORT
from penstock_ops.verify.between.coordinator import (
    RESULTS,
    Coordinator,
    Reply,
    Request,
    any_text,
    anything,
)
from penstock_ops.verify.finding import Finding, Layer, Status

CHECK = "nodes"
LOOK = 1.0
"""Seconds between two reads of the state of the hosts."""
POLL = 0.2
UNREACHABLE = 10.0
"""Seconds after which a server that its own host reaches is out of reach from here."""
FIND_SECONDS = 60.0
END_SECONDS = 15.0
"""Longer than the time that an agent gives its processes to end."""
OPERATIONS: Mapping[str, Form] = {
    "find_model": members({"path": text(), "directory": text(), "parameters": count(1)}),
    "serve": rows(PORT),
    "server_state": members(
        {"status": or_null(count(-255, 255)), "is_ready": truth, "log": text(), "tail": any_text}
    ),
    "measure": anything,
    "foreign_share": number(0.0, 1.0),
    "end_server": anything,
}
"""Forms of the results of `node.operations_of`, without those of `penstock verify`."""
FORMS = {**RESULTS, **OPERATIONS}


@dataclass(frozen=True, slots=True)
class HostFault:
    """Why a host cannot serve its part of the plan."""

    layer: Layer
    summary: str
    remedy: str
    cause: str = ""

    def finding(self, node: str) -> Finding:
        cause, remedy = self.cause, self.remedy
        return Finding(
            CHECK, self.layer, node, "", Status.FAIL, self.summary, cause=cause, remedy=remedy
        )


@dataclass(frozen=True, slots=True)
class Models:
    """The plan's model on the hosts, by the place of each."""

    directories: Mapping[int, str]
    faults: Mapping[int, HostFault]


def find_models(coordinator: Coordinator, model: str, plan_name: str, size: int) -> Models:
    """Find `model` on all hosts; a fault where it is missing, or has not about `size` parameters.
    A host that is lost has neither.
    """
    directories, faults = {}, {}
    for at, reply in coordinator.run("find_model", {"model": model}, FIND_SECONDS).items():
        error = reply.error and message(reply)
        if not error:
            path, own = reply.result["path"], reply.result["parameters"]
            error = size_error(path, own, plan_name, size)
            directories[at] = reply.result["directory"]
        if error:
            name = coordinator.nodes[at].name
            remedy = f"copy the plan's model to {name}, and name its path there by --model"
            faults[at] = HostFault(Layer.STORAGE, error, remedy)
    return Models(directories, faults)


def message(reply: Reply) -> str:
    """The text of an agent's error, without its type."""
    return reply.error.partition(": ")[2]


class HostsServer:
    """A server of one replica; the first host has the API server. `port` 0 is a free one."""

    def __init__(
        self, coordinator: Coordinator, settings: Settings, port: int, patience: float
    ) -> None:
        self._hosts = coordinator
        self._port = port or self._free_port()
        self._metrics_port = self._free_port(self._port)
        address = coordinator.nodes[0].address
        flags = node_flags(settings, address, self._port, self._metrics_port)
        if len(coordinator.nodes) > 1:
            flags += [
                f"--nnodes={len(coordinator.nodes)}",
                f"--master-addr={join_address(address, MASTER_PORT)}",
                f"--distributed-timeout-seconds={max(int(patience), 1)}",
            ]
        self._flags = flags
        self._token, self.api_key = secrets.token_hex(32), secrets.token_hex(32)
        self._faults: dict[int, HostFault] = {}
        self._logs: dict[int, str] = {}
        self._tails: dict[int, str] = {}
        self._is_ready_there = False

    def _free_port(self, other: int = 0) -> int:
        """A free port of the first host that is not `other`."""
        for _ in range(8):
            reply = self._hosts.run_each({0: Request("free_port", {}, 0.0)}).get(0)
            if reply is None or reply.error:
                reason = message(reply) if reply else f"lost: {self._hosts.nodes[0].lost}"
                raise PenstockError(f"{self.node}: no free port: {reason}")
            if reply.result not in (other, MASTER_PORT):
                return int(reply.result)
        raise PenstockError(f"{self.node} has no free port: choose one by --port")

    @property
    def node(self) -> str:
        return self._hosts.nodes[0].name

    @property
    def url(self) -> str:
        return f"http://{join_address(self._hosts.nodes[0].address, self._port)}"

    @property
    def _metrics_url(self) -> str:
        return f"http://{join_address(self._hosts.nodes[0].address, self._metrics_port)}"

    @property
    def command(self) -> list[str]:
        """The command of the first host; the others have another --node-rank."""
        return ["penstock", "serve", *self._flags, *self._rank(0)]

    @property
    def process(self) -> str:
        return f"on {len(self._hosts.nodes)} hosts"

    @property
    def logs(self) -> str:
        paths = sorted(self._logs.items())
        return ", ".join(f"{self._hosts.nodes[at].name}:{path}" for at, path in paths)

    @property
    def is_started(self) -> bool:
        return True

    def _rank(self, at: int) -> list[str]:
        return [f"--node-rank={at}"] if len(self._hosts.nodes) > 1 else []

    # Start ----------------------------------------------------------------------------------------

    def start(self, patience: float) -> float:
        """Start the ranks on all hosts, and wait until the server is ready. Returns the seconds
        that it took. PenstockError if a host has a fault, which `findings` names, or if the server
        is not ready within `patience` seconds.
        """
        begin = time.monotonic()
        self._launch()
        ready = f"{self._metrics_url}/ready"
        ready_there: float | None = None
        while not self._is_ready():
            now = time.monotonic()
            self.look(ready)
            if self._is_ready_there:
                ready_there = ready_there or now
                if now - ready_there > UNREACHABLE:
                    self._faults[0] = self._unreachable()
            self._raise_fault()
            if now - begin > patience:
                raise PenstockError(
                    f"it was not ready after {patience:.0f} s; the end of the log of {self.node}: "
                    f"{self._tails.get(0, '')}"
                )
            time.sleep(POLL)
        return round(time.monotonic() - begin, 2)

    def _launch(self) -> None:
        several = len(self._hosts.nodes) > 1
        requests = {}
        for at in self._hosts.alive:
            ports = [self._port, self._metrics_port] if at == 0 else []
            arguments = {
                "flags": [*self._flags, *self._rank(at)],
                "token": self._token if several else "",
                "api_key": "" if at else self.api_key,
                "ports": [*ports, MASTER_PORT] if several and at == 0 else ports,
            }
            requests[at] = Request("serve", arguments, 0.0)
        for at, reply in self._hosts.run_each(requests).items():
            if reply.error:
                summary = f"the server cannot be started: {message(reply)}"
                remedy = "its temporary directory (TMPDIR) must have room for a log"
                self._faults[at] = HostFault(Layer.HOST, summary, remedy)
            elif reply.result:
                self._faults[at] = _taken(self._hosts.nodes[at].name, reply.result)
        self._note_lost()
        self._raise_fault()

    def _is_ready(self) -> bool:
        return answers(f"{self._metrics_url}/ready") and answers(f"{self.url}/health")

    def _raise_fault(self) -> None:
        for at, fault in sorted(self._faults.items()):
            raise PenstockError(f"{self._hosts.nodes[at].name}: {fault.summary}")

    def _unreachable(self) -> HostFault:
        ports = f"{self._port} and {self._metrics_port}"
        return HostFault(
            Layer.FABRIC,
            f"{self.url} is ready there, and cannot be reached from here",
            f"open ports {ports} of {self.node} for this machine (--port chooses the first), or "
            "run penstock up inside their network",
            "a firewall, or another network",
        )

    # Watch ----------------------------------------------------------------------------------------

    def look(self, ready_url: str = "") -> None:
        """Read the state of the processes of all hosts, and on the first, whether the server
        answers at `ready_url`, if that is given.
        """
        requests = {
            at: Request("server_state", {"ready_url": "" if at else ready_url}, 0.0)
            for at in self._hosts.alive
        }
        for at, reply in self._hosts.run_each(requests).items():
            if reply.error:
                self._faults.setdefault(
                    at, HostFault(Layer.HOST, message(reply), "look at the host's log")
                )
                continue
            state = reply.result
            self._logs[at], self._tails[at] = state["log"], state["tail"]
            if at == 0:
                self._is_ready_there = state["is_ready"]
            if state["status"] is not None:
                place = f"{self._hosts.nodes[at].name}:{state['log']}"
                self._faults.setdefault(at, _ended(state["status"], state["tail"], place))
        self._note_lost()

    def _note_lost(self) -> None:
        for at, node in enumerate(self._hosts.nodes):
            if node.lost:
                self._faults.setdefault(at, _lost(node.name, node.lost))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Reads the state of the hosts meanwhile. A fault ends the block, because a load could wait
        for ever for a host that is gone. Suppresses the error of a block that a fault ended.
        """
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,), name="hosts")
        try:
            try:
                thread.start()
                yield
            finally:
                with uninterrupted():
                    over.set()
                    if thread.is_alive():
                        thread.join()
        except (KeyboardInterrupt, PenstockError):
            self.look()
            if not self._faults:
                raise

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK):
            self.look()
            if self._faults and not over.is_set():
                # To the main thread, whose system calls it shall interrupt. Not SIGINT, which jobs
                # in the background of a shell script ignore.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                return

    def findings(self) -> list[Finding]:
        """A finding for each host: its fault, or that its processes run."""
        self.look()
        return [
            self._faults[at].finding(node.name)
            if at in self._faults
            else Finding(CHECK, Layer.ENGINE, node.name, "", Status.PASS, "its ranks run")
            for at, node in enumerate(self._hosts.nodes)
        ]

    # Measure --------------------------------------------------------------------------------------

    def metrics(self) -> Page:
        return metrics_of(self._metrics_url)

    def usage(self) -> Callable[[], tuple[str, float] | None]:
        """Begin to measure. The function gives the host whose processors other programs used most,
        with their share; None if no host answers.
        """
        self._hosts.run("measure", {})

        def most() -> tuple[str, float] | None:
            replies = self._hosts.run("foreign_share", {})
            shares = {
                self._hosts.nodes[at].name: float(reply.result)
                for at, reply in replies.items()
                if not reply.error
            }
            return max(shares.items(), key=lambda each: each[1], default=None)

        return most

    def end(self, *, keep_log: bool = False) -> None:
        """End the ranks on all hosts that answer. A signal that comes meanwhile waits for this;
        hosts that do not answer end their ranks themselves.
        """
        with uninterrupted():
            self._hosts.run("end_server", {"keep_log": keep_log}, END_SECONDS)


def _taken(host: str, ports: Sequence[int]) -> HostFault:
    names = ", ".join(map(str, ports))
    plural = "s" if len(ports) > 1 else ""
    remedy = f"end what listens there (`ssh {host} ss -ltnp`)"
    if MASTER_PORT not in ports:
        remedy += ", or choose another --port"
    return HostFault(Layer.HOST, f"port{plural} {names} in use", remedy)


def _ended(status: int, tail: str, log: str) -> HostFault:
    cause = "often the kernel, without memory: see dmesg there" if status == -signal.SIGKILL else ""
    return HostFault(
        Layer.ENGINE,
        f"its process {exit_text(status)}; the end of its log: {tail}",
        f"read {log}",
        cause or "the last lines of its log name it",
    )


def _lost(host: str, reason: str) -> HostFault:
    return HostFault(
        Layer.HOST,
        f"lost: {reason}",
        f"`ssh -o BatchMode=yes {host} true` must succeed; then run this again",
        "the host, its agent, or the network to it is down",
    )
