"""Rendezvous of nodes at node 0: tracks which nodes have joined, were refused, or are missing."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.config import split_address
from penstock.core import PenstockError
from penstock.executor.nodes.messages import (
    LIMIT,
    PROTOCOL,
    Called,
    Hello,
    M,
    Message,
    MessageError,
    Refused,
    Unable,
    decode,
    encode,
    expect,
)
from penstock.executor.nodes.rank_assignment import Node
from penstock.executor.ranks import HeartbeatStream, join_address

if TYPE_CHECKING:
    from penstock._native import Stream

SILENCE = 1.25
"""Seconds without a heartbeat after which a node, or a rank on another node, counts as lost."""
PATIENCE = 30.0
"""Timeout in seconds for sending a message to a node or rank."""
LOOK = 0.2
SAY = 10.0
"""Minimum seconds between two log lines about missing nodes."""
GREETING = 10.0
"""Timeout in seconds for the first message on a new connection."""

log = logging.getLogger("penstock.executor")


@dataclass(frozen=True, slots=True)
class Member:
    """A node that has joined."""

    node: Node
    called: str
    """Node 0's address, as seen by this node."""
    stream: HeartbeatStream

    def ask(self, message: Message, kind: type[M], timeout: float) -> M:
        """Send a message and wait for a reply of type `kind`. Raises PenstockError if none arrives
        within `timeout` seconds, if the node is lost, or if it reports a failure.
        """
        try:
            self.stream.send(encode(message))
            answer = self.stream.receive(timeout)
        except ConnectionError as error:
            raise PenstockError(f"{self.node} was lost: {error}") from error
        if answer is None:
            raise PenstockError(
                f"{self.node} does not answer after {timeout:.0f} s: look at its log"
            )
        decoded = decode(answer)
        if isinstance(decoded, Unable):
            raise PenstockError(f"{self.node}: {decoded.reason}")
        return expect(decoded, kind)


@dataclass(slots=True)
class Callers:
    """Nodes and ranks that have connected to node 0, by number."""

    members: dict[int, Member] = field(default_factory=dict)
    ranks: dict[int, HeartbeatStream] = field(default_factory=dict)
    turned_away: str = ""
    """Address of the last peer that was rejected for a wrong token."""


class Rendezvous:
    """Listens at `master` for nodes with the same `fingerprint`, and for their ranks. `key`
    authenticates all of them. Raises PenstockError if it cannot listen there.
    """

    def __init__(
        self, master: str, key: bytes, fingerprint: Mapping[str, str], nnodes: int
    ) -> None:
        from penstock._native import StreamListener

        self._master = master
        self._fingerprint = {**fingerprint, **PROTOCOL}
        self._nnodes = nnodes
        self._callers = Callers()
        try:
            self._listener: StreamListener | None = StreamListener(listening_address(master), key)
        except ValueError as error:
            raise PenstockError(
                f"--master-addr {master}: {error}. On node 0 it must be an address of this host "
                "and a port that is free; 0.0.0.0 stands for all addresses, but only here"
            ) from error

    @property
    def ranks(self) -> Mapping[int, HeartbeatStream]:
        """Streams of the ranks that have connected, by rank."""
        return self._callers.ranks

    def gather(self, patience: float) -> list[Member]:
        """Wait for all other nodes; returns them in order. Raises PenstockError, which names the
        nodes that are missing after `patience` seconds, or the first with a different fingerprint.
        """
        began = said = time.monotonic()
        members = self._callers.members
        while len(members) < self._nnodes - 1:
            self._take()
            for node in [node for node, member in members.items() if member.stream.ended]:
                log.warning("%s has left: %s", members[node].node, members[node].stream.ended)
                del members[node]
            now = time.monotonic()
            if now - began >= patience:
                raise PenstockError(f"{self._missing()}; waited {patience:.0f} s")
            if now - said >= (SAY if said > began else 1.0):
                log.warning("%s", self._missing())
                said = now
        return [members[node] for node in sorted(members)]

    def take_ranks(
        self,
        ranks: Collection[int],
        session: str,
        limit: int,
        patience: float,
        check: Callable[[], None],
        on_end: Callable[[int, str], None],
    ) -> dict[int, HeartbeatStream]:
        """Wait at most `patience` seconds for each of `ranks` to connect; returns a stream to each,
        for messages of at most `limit` bytes. `check` raises if a rank is lost meanwhile. `on_end`
        is called with rank and reason when a stream ends.
        """
        deadline = time.monotonic() + patience
        streams = self._callers.ranks
        while len(streams) < len(ranks):
            check()
            caller = self._take()
            if caller is not None:
                stream, called = caller
                rank = called.rank
                if called.session == session and rank in ranks and rank not in streams:
                    ended = partial(on_end, rank)
                    streams[rank] = HeartbeatStream(stream, limit, SILENCE, ended)
                else:  # The rank belongs to an earlier engine.
                    stream.end()
            if time.monotonic() >= deadline:
                missing = ", ".join(str(rank) for rank in sorted(set(ranks) - set(streams)))
                raise PenstockError(
                    f"waited {patience:.0f} s for ranks {missing} to call {self._master}; they "
                    "call where their node did: look at its log, and at what is between the hosts"
                )
        return dict(streams)

    def close(self) -> None:
        members = [member.stream for member in self._callers.members.values()]
        for stream in [*self._callers.ranks.values(), *members]:
            stream.close("the engine ended")
        self._listener = None

    # Incoming connections -------------------------------------------------------------------------

    def _take(self) -> tuple[Stream, Called] | None:
        """Accept the next connection. If a rank connected, returns it with its first message. A
        node joins or is refused.
        """
        assert self._listener is not None
        stream = self._listener.accept_within(LOOK, PATIENCE)
        away = self._listener.turned_away()
        if away is not None:
            if away != self._callers.turned_away:
                log.warning(
                    "a caller from %s was turned away: it has not the token of this node", away
                )
            self._callers.turned_away = away
        if stream is None:
            return None
        try:
            greeting = stream.receive(GREETING, LIMIT)
            message = decode(greeting or b"")
        except (ConnectionError, MessageError) as error:
            log.warning("a caller with the token sent no greeting: %s", error)
            stream.end()
            return None
        if isinstance(message, Called):
            return stream, message
        self._join(stream, expect(message, Hello))
        return None

    def _join(self, stream: Stream, hello: Hello) -> None:
        node = Node(hello.node, hello.address)
        other = self._callers.members.get(node.id)
        differences = compare(self._fingerprint, hello.fingerprint)
        if differences:
            reason = f"{node} cannot join node 0 ({hello.called}): {'; '.join(differences)}"
            refused = Refused(
                f"{reason}. Start all nodes with the same version, model and flags", True
            )
        elif not 0 < node.id < self._nnodes:
            refused = Refused(f"{node} cannot join {self._nnodes} nodes", True)
        elif other is not None and not other.stream.ended:
            reason = f"{node} is there already, as {other.node}: each needs its own --node-rank"
            refused = Refused(reason, False)
        else:
            joined = HeartbeatStream(stream, LIMIT, SILENCE, lambda _: None)
            self._callers.members[node.id] = Member(node, hello.called, joined)
            log.info("%s has joined", node)
            return
        stream.send(encode(refused))
        stream.end()
        if refused.final:
            raise PenstockError(refused.reason)
        log.warning("%s", refused.reason)

    def _missing(self) -> str:
        missing = [node for node in range(1, self._nnodes) if node not in self._callers.members]
        names = (
            f"node {missing[0]}" if len(missing) == 1 else f"nodes {', '.join(map(str, missing))}"
        )
        said = f"waiting for {names} of {self._nnodes} at {self._master}"
        away = self._callers.turned_away
        if away:
            said += f" (a caller from {away} was turned away: it has not the token of node 0)"
        return f"{said}: start there the same command with another --node-rank"


def compare(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Differences between the fingerprints of node 0 (`ours`) and another node, as text for an
    error message.
    """
    return [
        f"{name} is {theirs.get(name, 'unknown')} there, {ours.get(name, 'unknown')} on node 0"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def listening_address(master: str) -> str:
    """The address at which node 0 listens, derived from the `host:port` that nodes connect to. An
    IP address stays as it is. A host name becomes the wildcard address, because a host may resolve
    its own name to loopback.
    """
    host, port = split_address(master)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return join_address(host, port)
