"""All ranks of an engine on several nodes: processes on this node, and ranks on other nodes, whose
agents report their exits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from penstock.core import PenstockError
from penstock.executor.nodes.messages import End, Ended, RankLoss, Started, Unable, decode, encode
from penstock.executor.nodes.rank_assignment import Node
from penstock.executor.nodes.rendezvous import Member
from penstock.executor.processes import Processes, RankExit

NOTICE = 5.0
"""Seconds for ranks to end by themselves, before they are killed."""
REPORT = 1.0
"""Seconds to wait, after the first sign of a loss, for stronger evidence of its cause. Generous,
because a busy machine reports late.
"""
WAIT = 60.0

CAUSE, END, SILENT = range(3)
"""Kinds of evidence for the cause of a loss, strongest first: a signal or a failed node, a rank's
exit, a closed stream.
"""


@dataclass(frozen=True, slots=True)
class Loss:
    account: int
    exit: RankExit


class World:
    """All ranks. `hosts` has the node of each rank. `on_exit` is called once, on a thread, with the
    exit of the rank that was lost first according to the strongest evidence.
    """

    def __init__(
        self, members: Sequence[Member], hosts: Sequence[Node], on_exit: Callable[[RankExit], None]
    ) -> None:
        self._members = members
        self._hosts = hosts
        self._on_exit = on_exit
        self._losses: SimpleQueue[Loss | None] = SimpleQueue()
        self._processes: Processes | None = None
        self._remote_pids: dict[int, list[int]] = {}
        self._ended = {member.node.id: threading.Event() for member in members}
        self._cut_off = False
        self._over = False
        self._watcher = threading.Thread(target=self._watch, name="losses", daemon=True)
        self._watcher.start()
        self._listeners = [
            threading.Thread(
                target=self._listen, args=(member,), name=f"{member.node}", daemon=True
            )
            for member in members
        ]
        for listener in self._listeners:
            listener.start()

    def add_processes(self, processes: Processes) -> None:
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order. Each is valid on the rank's own node."""
        own = self._processes.pids if self._processes else []
        return [
            *own,
            *(pid for node in sorted(self._remote_pids) for pid in self._remote_pids[node]),
        ]

    @property
    def host(self) -> str:
        """Address of this node, which runs the first ranks."""
        return self._hosts[0].address

    # Losses ---------------------------------------------------------------------------------------

    def on_local_exit(self, gone: RankExit) -> None:
        self._losses.put(Loss(CAUSE if gone.killed else END, gone))

    def on_stream_end(self, rank: int, reason: str) -> None:
        lost = f"rank {rank} on {self._hosts[rank]} was lost: {reason}"
        self._losses.put(Loss(SILENT, RankExit(rank, lost, time.monotonic())))

    def _listen(self, member: Member) -> None:
        """Handle a node's messages until its stream ends."""
        node = member.node
        rank = self._hosts.index(node)
        try:
            while True:
                data = member.stream.receive(WAIT)
                if data is not None:
                    self._handle(node, rank, data)
        except (ConnectionError, PenstockError) as error:
            if not self._over:
                self._cut_off = True
            lost = f"{node} was lost: {error}"
            self._losses.put(Loss(CAUSE, RankExit(rank, lost, time.monotonic())))
        self._ended[node.id].set()

    def _handle(self, node: Node, first: int, data: bytes) -> None:
        message, now = decode(data), time.monotonic()
        if isinstance(message, Started):
            self._remote_pids[node.id] = message.pids
        elif isinstance(message, RankLoss):
            account = CAUSE if message.killed else END
            gone = RankExit(message.rank, message.reason, now, message.killed)
            self._losses.put(Loss(account, gone))
        elif isinstance(message, Unable):
            self._losses.put(Loss(CAUSE, RankExit(first, f"{node}: {message.reason}", now)))
        elif isinstance(message, Ended):
            self._ended[node.id].set()

    def _watch(self) -> None:
        first = self._losses.get()
        found = [first]
        deadline = time.monotonic() + REPORT
        while found[-1] is not None and found[-1].account != CAUSE:
            try:
                found.append(self._losses.get(timeout=max(deadline - time.monotonic(), 0.0)))
            except Empty:
                break
        losses = [loss for loss in found if loss is not None]
        if losses and not self._over:
            self._on_exit(min(losses, key=lambda loss: loss.account).exit)

    # Shutdown -------------------------------------------------------------------------------------

    def all_ended(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for all ranks to end; returns whether they have. Returns
        False at once if a node is lost.
        """
        deadline = time.monotonic() + timeout
        if self._cut_off or (
            self._processes is not None and not self._processes.all_ended(timeout)
        ):
            return False
        return all(
            ended.wait(max(deadline - time.monotonic(), 0.0)) for ended in self._ended.values()
        )

    def end(self, notice: float = NOTICE) -> None:
        """End all ranks. Returns once the ranks of this node and of every other responding node
        have ended.
        """
        if self._over:
            return
        self._over = True
        self._losses.put(None)
        for member in self._members:
            try:
                member.stream.send(encode(End(notice)))
            except ConnectionError:
                self._ended[member.node.id].set()
        if self._processes is not None:
            self._processes.end(notice)
        deadline = time.monotonic() + notice + NOTICE
        for member in self._members:
            self._ended[member.node.id].wait(max(deadline - time.monotonic(), 0.0))
            member.stream.end("the engine ended")
        for thread in [self._watcher, *self._listeners]:
            if thread is not threading.current_thread():
                thread.join(NOTICE)
