"""Coordinator: runs operations on the agents of all nodes, within time limits. A node that ends,
does not answer or sends something else than expected is lost: the others are still measured.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count as counter
from typing import Any

from penstock import __version__
from penstock.config.forms import Form, count, members, number, or_null, rows, text, truth
from penstock.core import PenstockError
from penstock_ops.verify.between.agent import MOST_GPUS, PORT, PROTOCOL
from penstock_ops.verify.between.channel import Channel, LostError
from penstock_ops.verify.between.measurements import ClockOffset

GREETING = members(
    {
        "protocol": count(),
        "version": text(),
        "node": count(),
        "host": text(),
        "address": text(),
        "port": PORT,
    }
)
LONGEST = 10.0**6
STAMPS = members({"received": number(), "sent": number()})


def anything(key: str, value: object) -> None:
    """The form of a result that its user checks."""


def any_text(key: str, value: object) -> None:
    if not isinstance(value, str):
        text()(key, value)


def gpu_number(key: str, value: object) -> None:
    """A GPU, or -1 for none."""
    if value != -1:
        count(0, MOST_GPUS - 1)(key, value)


MICROSECONDS = number(0.0, 1e9)
ADAPTER = members(
    {"name": text(), "layer": any_text, "gbit_per_s": number(0.1, 1e5), "gpu": gpu_number}
)
RESULTS: Mapping[str, Form] = {
    "start": anything,
    "stamp": anything,
    "resolve": rows(members({"seconds": number(0.0, LONGEST), "error": any_text})),
    "reach": rows(
        members({"error": any_text, "round_trip_us": or_null(MICROSECONDS), "resent": count()})
    ),
    "listen": any_text,
    "connections": rows(any_text),
    "transfer": members(
        {
            "bytes": count(),
            "seconds": number(1e-6, LONGEST),
            "path_mtu": count(),
            "segments": count(),
            "resent": count(),
            "has_ended": truth,
        }
    ),
    "line_rate": number(0.0, 1e4),
    "segment": count(),
    "free_port": PORT,
    "all_reduce": rows(MICROSECONDS, least=1),
    "collect": anything,
    "rdma_adapters": members(
        {"adapters": rows(ADAPTER), "missing": any_text, "has_gpu_option": truth}
    ),
    "rdma_serve": anything,
    "rdma_measure": any_text,
}
"""Forms of the results by operation."""


@dataclass(slots=True)
class Node:
    """A node by its name, as the user knows it; `channel` is None if no agent was reached."""

    name: str
    channel: Channel | None
    address: str = ""
    """As peers reach it; its agent's own if empty."""
    host: str = ""
    """Its name, if other nodes should resolve it."""
    port: int = 0
    """Of the agent's probe server."""
    lost: str = ""
    clocks: list[ClockOffset] = field(default_factory=list)

    @property
    def target(self) -> dict[str, Any]:
        return {"address": self.address, "port": self.port}


@dataclass(frozen=True, slots=True)
class Reply:
    result: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    operation: str
    arguments: Mapping[str, Any]
    seconds: float
    """Time limit of the answer."""


class Coordinator:
    """`patience` is added to the time that an operation takes, before a node counts as lost.
    `results` has the form of each operation's result.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        patience: float,
        join: float,
        results: Mapping[str, Form] = RESULTS,
    ) -> None:
        self.nodes = nodes
        self._results = results
        self._patience = patience
        self._ids = counter(1)
        self._pool = ThreadPoolExecutor(max(len(nodes), 1))
        self._each(range(len(nodes)), lambda at: self._greet(nodes[at], join))
        self.run("start", {"key": secrets.token_hex(32)})

    @property
    def alive(self) -> list[int]:
        return [at for at, node in enumerate(self.nodes) if not node.lost]

    def close(self) -> None:
        self._each(range(len(self.nodes)), lambda at: self._close(self.nodes[at]))
        self._pool.shutdown()

    def run(
        self, operation: str, arguments: Mapping[str, Any], seconds: float = 0.0
    ) -> dict[int, Reply]:
        """Run an operation on all nodes at the same time."""
        return self.run_each({at: Request(operation, arguments, seconds) for at in self.alive})

    def run_each(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """Run one operation on each of some nodes at the same time. Lost nodes have no reply."""
        replies: dict[int, Reply] = {}

        def one(at: int) -> None:
            if not self.nodes[at].lost:
                reply = self._exchange(self.nodes[at], requests[at])
                if reply is not None:
                    replies[at] = reply

        self._each(requests, one)
        return replies

    def _each(self, positions: Iterable[int], work: Callable[[int], None]) -> None:
        for _ in self._pool.map(work, positions):
            pass

    def _greet(self, node: Node, join: float) -> None:
        if node.channel is None:
            return
        try:
            greeting = node.channel.receive(join)
            # Another version may have another form, so it is compared first.
            theirs = (greeting.get("version"), greeting.get("protocol"))
            if theirs != (__version__, PROTOCOL):
                raise LostError(
                    f"it has Penstock {theirs[0]!s:.40} (protocol {theirs[1]!s:.10}), here is "
                    f"{__version__} ({PROTOCOL}): install the same version on all nodes"
                )
            GREETING("", greeting)
        except PenstockError as error:
            node.lost = str(error)
            return
        node.address = node.address or greeting["address"]
        node.port = greeting["port"]

    def _exchange(self, node: Node, request: Request) -> Reply | None:
        """The reply; None if the node is lost."""
        assert node.channel is not None
        number = next(self._ids)
        body = {"id": number, "operation": request.operation, "arguments": request.arguments}
        began = time.time()
        try:
            node.channel.send(body)
            answer = node.channel.receive(request.seconds + self._patience)
            ended = time.time()
            if answer.get("id") != number:
                raise LostError(f"it answered request {answer.get('id')!s:.20}, not {number}")
            STAMPS("", answer)
            self._check(request.operation, answer)
        except PenstockError as error:
            node.lost = f"{request.operation}: {error}"
            return None
        node.clocks.append(offset(began, answer["received"], answer["sent"], ended))
        return Reply(answer.get("result"), answer.get("error", ""))

    def _check(self, operation: str, answer: Mapping[str, Any]) -> None:
        if "error" in answer:
            any_text("error", answer["error"])
        else:
            self._results[operation]("result", answer.get("result"))

    def _close(self, node: Node) -> None:
        if node.channel is not None:
            node.channel.close()


def offset(began: float, received: float, sent: float, ended: float) -> ClockOffset:
    """A peer's clock minus ours from the four stamps of a request and its answer (RFC 5905,
    section 8): half of what both ways differ, uncertain by half of the time on the way.
    """
    away = (ended - began) - (sent - received)
    return ClockOffset(((received - began) + (sent - ended)) / 2, max(away, 0.0) / 2)
