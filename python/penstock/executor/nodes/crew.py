"""All ranks as one: processes of this node, and those that other nodes tell of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from penstock.core import PenstockError
from penstock.executor.exits import Exit
from penstock.executor.nodes.messages import End, Ended, Gone, Started, Unable, decode, encode
from penstock.executor.nodes.muster import Member
from penstock.executor.nodes.places import Node

NOTICE = 5.0
"""Seconds in which ranks that are told to end do so before they are killed."""
REPORT = 0.3
"""Seconds in which a better account of a loss may come than the one that came first."""
WAIT = 60.0

CAUSE, END, SILENT = range(3)
"""What tells of a loss, the better account first: a kill or the end of a node, an exit, the end of
a line.
"""


class Processes(Protocol):
    """Of this node."""

    @property
    def pids(self) -> list[int]: ...

    def all_ended(self, timeout: float) -> bool: ...

    def end(self, notice: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Loss:
    account: int
    exit: Exit


class Crew:
    """`hosts` names the node of each rank. `on_exit` is called once (on a thread), when one is
    lost.
    """

    def __init__(
        self, members: Sequence[Member], hosts: Sequence[Node], on_exit: Callable[[Exit], None]
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
        """Processes of the ranks on their nodes, in their order."""
        own = self._processes.pids if self._processes else []
        return [
            *own,
            *(pid for node in sorted(self._remote_pids) for pid in self._remote_pids[node]),
        ]

    @property
    def host(self) -> str:
        """Address of this node, which has the first ranks."""
        return self._hosts[0].address

    # Losses
    # -----------------------------------------------------------------------------------------

    def on_local_exit(self, gone: Exit) -> None:
        self._losses.put(Loss(CAUSE if gone.killed else END, gone))

    def on_line_end(self, rank: int, reason: str) -> None:
        how = f"rank {rank} on {self._hosts[rank]} was lost: {reason}"
        self._losses.put(Loss(SILENT, Exit(rank, how, time.monotonic())))

    def _listen(self, member: Member) -> None:
        """To what a node says of its ranks, until its line ends."""
        node = member.node
        rank = self._hosts.index(node)
        try:
            while True:
                data = member.line.receive(WAIT)
                if data is not None:
                    self._hear(node, rank, data)
        except (ConnectionError, PenstockError) as error:
            if not self._over:
                self._cut_off = True
            how = f"{node} was lost: {error}"
            self._losses.put(Loss(CAUSE, Exit(rank, how, time.monotonic())))
        self._ended[node.id].set()

    def _hear(self, node: Node, first: int, data: bytes) -> None:
        message, now = decode(data), time.monotonic()
        if isinstance(message, Started):
            self._remote_pids[node.id] = message.pids
        elif isinstance(message, Gone):
            account = CAUSE if message.killed else END
            self._losses.put(Loss(account, Exit(message.rank, message.how, now, message.killed)))
        elif isinstance(message, Unable):
            self._losses.put(Loss(CAUSE, Exit(first, f"{node}: {message.reason}", now)))
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

    # The end
    # ----------------------------------------------------------------------------------------

    def all_ended(self, timeout: float) -> bool:
        """Whether no rank is left, after at most `timeout` seconds; nobody waits for a node that is
        lost.
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
        """Returns when the ranks of this node are gone, and those of nodes that still answer."""
        if self._over:
            return
        self._over = True
        self._losses.put(None)
        for member in self._members:
            try:
                member.line.send(encode(End(notice)))
            except ConnectionError:
                self._ended[member.node.id].set()
        if self._processes is not None:
            self._processes.end(notice)
        deadline = time.monotonic() + notice + NOTICE
        for member in self._members:
            self._ended[member.node.id].wait(max(deadline - time.monotonic(), 0.0))
            member.line.end("the engine ended")
        for thread in [self._watcher, *self._listeners]:
            if thread is not threading.current_thread():
                thread.join(NOTICE)
