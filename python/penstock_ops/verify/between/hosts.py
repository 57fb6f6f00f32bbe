"""Agents on hosts: started by the user's own ssh, or waited for where pods start them."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.config import split_address
from penstock.config.forms import Form
from penstock.core import InvalidValueError, PenstockError
from penstock.executor.nodes.rendezvous import listening_address
from penstock.executor.ranks import join_address
from penstock_ops.verify.between.agent import Agent, own_address
from penstock_ops.verify.between.channel import (
    CommandChannel,
    LostError,
    StreamChannel,
    standard_channel,
)
from penstock_ops.verify.between.coordinator import RESULTS, Coordinator, Node
from penstock_ops.verify.between.survey import Settings

PROGRAM = "penstock"
AGENT = "agent"
"""In place of hosts, or of a plan: be the agent that a coordinator's ssh starts."""
MOST_HOSTS = 1024
CALL_SECONDS = 5.0
WAIT_SECONDS = 1.0
PATIENCE = 60.0
"""Seconds of a stream's sends and receives within a message."""


def checked_hosts(hosts: Sequence[str]) -> list[str]:
    """InvalidValueError for a name that ssh would take for an option, or that is there twice."""
    for at, host in enumerate(hosts):
        if host.startswith("-") or not host.isprintable() or not host or " " in host:
            raise InvalidValueError("HOST", host, "the name or address of a host, as ssh has it")
        if host in hosts[:at]:
            raise InvalidValueError("HOST", host, "each host once")
    if len(hosts) > MOST_HOSTS:
        raise InvalidValueError("HOST", f"{len(hosts)} hosts", f"at most {MOST_HOSTS}")
    return list(hosts)


def address_of(host: str) -> str:
    """The address of a host of the form [USER@]NAME; empty if the name does not resolve here: it
    may be an alias of ssh's configuration.
    """
    try:
        found = socket.getaddrinfo(host.rpartition("@")[2], None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return str(found[0][4][0])


def over_ssh(host: str, command: str) -> Node:
    words = ("ssh", "-o", "BatchMode=yes", host, PROGRAM, command, AGENT)
    name = host.rpartition("@")[2]
    try:
        address = address_of(host)
        # A name that does not resolve here is an alias of ssh's, which no node needs to know.
        resolved = name if address not in ("", name) else ""
        return Node(name, CommandChannel(words), address, resolved)
    except LostError as error:
        return Node(name, None, lost=str(error))


@contextmanager
def ssh_nodes(
    hosts: Sequence[str],
    settings: Settings,
    command: str = "verify",
    results: Mapping[str, Form] = RESULTS,
) -> Iterator[Coordinator]:
    """A coordinator of the agents of `penstock COMMAND` that ssh starts on `hosts`. The agents end
    with the block.
    """
    nodes = [over_ssh(host, command) for host in checked_hosts(hosts)]
    with _coordinated(nodes, settings, results) as coordinator:
        yield coordinator


@contextmanager
def called_nodes(master: str, nodes: int, key: bytes, settings: Settings) -> Iterator[Coordinator]:
    """A coordinator at `master`, HOST:PORT, of the agents of `nodes` nodes. The first runs here, as
    a process of its own; the others call, with the shared key.
    """
    from penstock._native import StreamListener

    try:
        listener = StreamListener(listening_address(master), key)
    except ValueError as error:
        raise PenstockError(f"--master-addr {master}: {error}") from error
    words = (sys.executable, "-m", PROGRAM, "verify", "agent")
    first = Node("node 0", CommandChannel(words), own_address())
    callers = _callers(listener, nodes, settings.join)
    rest = [callers.get(at) or _missing(at, settings.join) for at in range(1, nodes)]
    with _coordinated([first, *rest], settings) as coordinator:
        yield coordinator


def _missing(at: int, seconds: float) -> Node:
    return Node(f"node {at}", None, lost=f"its agent did not call within {seconds:g} s")


@contextmanager
def _coordinated(
    nodes: list[Node], settings: Settings, results: Mapping[str, Form] = RESULTS
) -> Iterator[Coordinator]:
    coordinator = Coordinator(nodes, settings.patience, settings.join, results)
    try:
        yield coordinator
    finally:
        coordinator.close()


def _callers(listener: Any, nodes: int, seconds: float) -> dict[int, Node]:
    """The agents that call within `seconds`, by the number of their node."""
    found: dict[int, Node] = {}
    deadline = time.monotonic() + seconds
    while len(found) < nodes - 1 and time.monotonic() < deadline:
        stream = listener.accept_within(WAIT_SECONDS, PATIENCE)
        if stream is None:
            continue
        channel = GreetedChannel(StreamChannel(stream))
        at = channel.node(deadline)
        if at is None or not 0 < at < nodes or at in found:
            channel.close()
        else:
            found[at] = Node(f"node {at} ({channel.host})", channel)
    return found


class GreetedChannel:
    """A channel whose first message was read, to know which node calls."""

    def __init__(self, channel: StreamChannel) -> None:
        self._channel = channel
        self._greeting: dict[str, Any] | None = None

    @property
    def host(self) -> str:
        name = str((self._greeting or {}).get("host"))
        return "".join(c for c in name[:64] if c.isprintable())

    def node(self, deadline: float) -> int | None:
        """The number of the node that calls; None if it sends something else."""
        try:
            self._greeting = self._channel.receive(max(deadline - time.monotonic(), 0.1))
        except LostError:
            return None
        number = self._greeting.get("node")
        return number if isinstance(number, int) else None

    def send(self, message: Mapping[str, Any]) -> None:
        self._channel.send(message)

    def receive(self, seconds: float | None) -> dict[str, Any]:
        greeting, self._greeting = self._greeting, None
        return greeting or self._channel.receive(seconds)

    def close(self) -> None:
        self._channel.close()


# The agent's side ---------------------------------------------------------------------------------


def serve_standard() -> int:
    """Be the agent of this node, over standard input and output, until they close."""
    Agent(standard_channel(lambda: os._exit(0)), own_address()).run()
    return 0


def call(
    master: str, node: int, key: bytes, seconds: float, end: Callable[[int], None] = os._exit
) -> int:
    """Be the agent of node `node` for the coordinator at `master`. PenstockError if it cannot be
    reached within `seconds`. The process ends when the coordinator ends.
    """
    from penstock._native import Stream

    deadline = time.monotonic() + seconds
    host, port = split_address(master)
    while True:
        try:
            address = address_of(host)
            if not address:
                raise OSError(f"{host} does not resolve")
            stream = Stream.connect(join_address(address, port), key, CALL_SECONDS)
            break
        except (OSError, ValueError) as error:
            if time.monotonic() >= deadline:
                raise PenstockError(
                    f"the coordinator at {master} cannot be reached: {error}. Is the token the "
                    "same on both?"
                ) from error
            time.sleep(WAIT_SECONDS)
    channel = StreamChannel(stream, lambda: end(0))
    Agent(channel, own_address(address), node).run()
    return 0
