"""Agent of one node: serves a fixed set of operations by name until its coordinator ends.

Requests are {"id", "operation", "arguments"}; an answer has the id, and `result` or `error`.
Nothing that a request contains is run as a command.
"""

from __future__ import annotations

import fcntl
import platform
import socket
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from penstock import __version__
from penstock.config import machine
from penstock.config.forms import Form, count, members, number, one_of, rows, text
from penstock.core import PenstockError
from penstock.executor.nodes.agent import own_address as source_address
from penstock.executor.ranks import join_address
from penstock_ops.verify.between import perftest, probes
from penstock_ops.verify.between.channel import Channel, LostError
from penstock_ops.verify.between.collecting import REQUEST, collected
from penstock_ops.verify.between.probes import ProbeServer

PROTOCOL = 1
"""Version of the messages between coordinator and agents."""
SIOCGIFADDR = 0x8915
"""linux/sockios.h."""
RESOLVE_SECONDS = 8.0
"""Longer than one attempt of the resolver, 5 s by resolv.conf(5)."""
MOST_PEERS = 1024
MOST_SAMPLES = 1000
MOST_SECONDS = 30.0
MOST_REDUCED = 64 << 20
"""Bytes of an all-reduce."""
MOST_GPUS = 64
PORT = count(1, 65535)
PEERS = rows(members({"address": text(), "port": PORT}))
HEXADECIMAL = text("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Operation:
    arguments: Form
    run: Callable[[Agent, Any], Any]


@dataclass(slots=True)
class Agent:
    """`address` is this node's, as peers reach it. `clock` gives seconds of the wall clock."""

    channel: Channel
    address: str
    node: int = 0
    """Number of this node, for agents that call the coordinator."""
    clock: Callable[[], float] = time.time
    server: ProbeServer = field(default_factory=ProbeServer)
    key: bytes = b""
    listeners: list[socket.socket] = field(default_factory=list)
    rdma: perftest.Server = field(default_factory=perftest.Server)
    operations: Mapping[str, Operation] = field(default_factory=lambda: OPERATIONS)

    def run(self) -> None:
        """Greet the coordinator, then serve it until the channel ends."""
        try:
            self.channel.send(self._greeting())
            while True:
                self.channel.send(self._answer(self.channel.receive(None)))
        except LostError:
            return
        finally:
            self.server.close()
            self.rdma.close()
            for listener in self.listeners:
                listener.close()

    def _greeting(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "node": self.node,
            "host": platform.node(),
            "address": self.address,
            "port": self.server.port,
        }

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        received = self.clock()
        answer: dict[str, Any] = {"id": request.get("id")}
        try:
            operation = self.operations.get(str(request.get("operation")))
            if operation is None:
                raise PenstockError(f"no operation {request.get('operation')!r}")
            arguments = request.get("arguments")
            operation.arguments("", arguments)
            answer["result"] = operation.run(self, arguments)
        except (PenstockError, OSError, ValueError) as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        # Stamps of every answer, for the offset of the clock.
        return answer | {"received": received, "sent": self.clock()}


def own_address(target: str = "192.0.2.1") -> str:
    """This host's address from which packets to `target` would be sent, or loopback without a
    route. The default is an address of documentation (RFC 5737). Sends nothing.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        return source_address(family, address)
    except OSError:
        return "127.0.0.1"


# Operations ---------------------------------------------------------------------------------------


def start(agent: Agent, arguments: Mapping[str, Any]) -> None:
    """Begin a run: the key by which agents admit each other."""
    agent.key = bytes.fromhex(arguments["key"])
    if len(agent.key) != probes.KEY_BYTES:
        raise PenstockError(f"key has {len(agent.key)} bytes, expected {probes.KEY_BYTES}")
    agent.server.admit(agent.key)


def stamp(agent: Agent, arguments: Mapping[str, Any]) -> None:
    """Nothing: the answer's stamps are the result."""


def line_rate(agent: Agent, arguments: Mapping[str, Any]) -> float:
    """GB/s of the network card that has this node's address; 0 for a virtual card."""
    for _, name in socket.if_nameindex():
        folder = Path("/sys/class/net") / name
        if interface_address(name) == agent.address and (folder / "device").exists():
            with suppress(OSError, ValueError):
                return max(int((folder / "speed").read_text()), 0) / 8e3
    return 0.0


def interface_address(name: str) -> str:
    """The first IPv4 address of an interface; empty without one."""
    request = struct.pack("256s", name.encode()[:15])
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as unsent, suppress(OSError):
        return socket.inet_ntoa(fcntl.ioctl(unsent.fileno(), SIOCGIFADDR, request)[20:24])
    return ""


def resolve(agent: Agent, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Seconds that each name takes to resolve, and the error if it does not."""
    pool = ThreadPoolExecutor(32)
    waits = [pool.submit(_resolved, name) for name in arguments["names"]]
    done, _ = wait(waits, RESOLVE_SECONDS)
    # A resolver that hangs must not hold the agent.
    pool.shutdown(wait=False, cancel_futures=True)
    late = {"seconds": RESOLVE_SECONDS, "error": f"no answer after {RESOLVE_SECONDS:g} s"}
    return [each.result() if each in done else late for each in waits]


def _resolved(name: str) -> dict[str, Any]:
    began, error = time.monotonic(), ""
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        error = str(problem)
    return {"seconds": time.monotonic() - began, "error": error}


def reach(agent: Agent, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each peer: the error of a connection to its agent, or the median round trip and the
    packets that were sent again.
    """
    samples = arguments["samples"]

    def one(peer: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with probes.connect(peer["address"], peer["port"], agent.key, probes.ECHO) as stream:
                middle = median(probes.round_trips(stream, samples))
                return {"error": "", "round_trip_us": middle, "resent": probes.tcp_info(stream)[1]}
        except OSError as error:
            reason = str(error) or type(error).__name__
            return {"error": reason, "round_trip_us": None, "resent": 0}

    return [one(peer) for peer in arguments["peers"]]


def _connection_error(peer: Mapping[str, Any]) -> str:
    address = (peer["address"], peer["port"])
    try:
        socket.create_connection(address, probes.CONNECT_SECONDS).close()
    except OSError as error:
        return str(error) or type(error).__name__
    return ""


def listen(agent: Agent, arguments: Mapping[str, Any]) -> str:
    """Listen on a port for the rest of the run. Returns "in use" if another process does."""
    try:
        agent.listeners.append(socket.create_server(("", arguments["port"]), backlog=MOST_PEERS))
    except OSError as error:
        return f"in use: {error.strerror}"
    return ""


def connections(agent: Agent, arguments: Mapping[str, Any]) -> list[str]:
    """For each peer's port: the error of a connection, empty if it is open."""
    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(_connection_error, arguments["peers"]))


def transfer(agent: Agent, arguments: Mapping[str, Any]) -> dict[str, Any]:
    address, port = arguments["address"], arguments["port"]
    return asdict(probes.transfer(address, port, agent.key, arguments["seconds"]))


def segment(agent: Agent, arguments: Mapping[str, Any]) -> int:
    """The largest size of segments that arrive at the peer."""
    return probes.largest_segment(arguments["address"], arguments["port"], agent.key)


def free_port(agent: Agent, arguments: Mapping[str, Any]) -> int:
    return machine.free_port("")


def all_reduce(agent: Agent, arguments: Mapping[str, Any]) -> list[float]:
    return probes.all_reduce_times(
        join_address(arguments["address"], arguments["port"]),
        agent.key,
        arguments["rank"],
        arguments["ranks"],
        arguments["bytes"],
        arguments["repeats"],
    )


def collect(agent: Agent, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence of checks of this node, by their names."""
    return collected(platform.node(), arguments)


def rdma_adapters(agent: Agent, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The node's RDMA adapters, and what perftest can measure here."""
    found = perftest.adapters()
    missing = perftest.missing_program() if found else ""
    return {
        "adapters": [asdict(each) for each in found],
        "missing": missing,
        "has_gpu_option": bool(found) and not missing and perftest.has_gpu_option(),
    }


def rdma_serve(agent: Agent, arguments: Mapping[str, Any]) -> None:
    """Start a server of perftest for one client."""
    agent.rdma.start(_rdma_words(arguments), arguments["port"])


def rdma_measure(agent: Agent, arguments: Mapping[str, Any]) -> str:
    """What perftest prints as the client of a peer's server."""
    return perftest.measure(_rdma_words(arguments), arguments["address"])


def _rdma_words(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    test, device, port = arguments["test"], arguments["device"], arguments["port"]
    return perftest.words_of(test, device, port, arguments.get("gpu", -1))


TARGET = {"address": text(), "port": PORT}
SECONDS = number(0.0, MOST_SECONDS)
RANKS = count(0, MOST_PEERS)
REDUCE = {"rank": RANKS, "ranks": RANKS, "bytes": count(1, MOST_REDUCED), "repeats": count(1, 1000)}
RDMA = {
    "test": one_of(*perftest.TESTS),
    "device": text(),
    "port": count(perftest.FIRST_PORT, perftest.FIRST_PORT + perftest.PORTS - 1),
}
GPU = {"gpu": count(0, MOST_GPUS - 1)}
OPERATIONS: Mapping[str, Operation] = {
    "start": Operation(members({"key": HEXADECIMAL}), start),
    "stamp": Operation(members({}), stamp),
    "line_rate": Operation(members({}), line_rate),
    "resolve": Operation(members({"names": rows(text())}), resolve),
    "reach": Operation(members({"peers": PEERS, "samples": count(1, MOST_SAMPLES)}), reach),
    "listen": Operation(members({"port": PORT}), listen),
    "connections": Operation(members({"peers": PEERS}), connections),
    "transfer": Operation(members({**TARGET, "seconds": SECONDS}), transfer),
    "segment": Operation(members(TARGET), segment),
    "free_port": Operation(members({}), free_port),
    "all_reduce": Operation(members({**TARGET, **REDUCE}), all_reduce),
    "collect": Operation(REQUEST, collect),
    "rdma_adapters": Operation(members({}), rdma_adapters),
    "rdma_serve": Operation(members(RDMA, GPU), rdma_serve),
    "rdma_measure": Operation(members({**RDMA, "address": text()}, GPU), rdma_measure),
}
