"""Agents in the network namespaces of hosts, as threads of the test: a process for each costs a
second of processor time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from penstock_ops.verify.between.agent import Agent
from penstock_ops.verify.between.channel import LineChannel
from penstock_ops.verify.between.coordinator import Coordinator, Node
from penstock_ops.verify.between.survey import Settings
from tests.limits import HANG
from tests.namespaces import Hosts

CLONE_NEWNET = 0x40000000
FAST = Settings(seconds=0.3, patience=HANG, join=HANG)


def enter(name: str) -> None:
    """Move this thread into a network namespace; threads that it starts are there, too."""
    with open(f"/run/netns/{name}") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def thread_agent(
    hosts: Hosts, at: int, clock: Callable[[], float] = time.time
) -> tuple[Node, threading.Thread]:
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()

    def work() -> None:
        enter(hosts.names[at])
        reads, writes = os.fdopen(request_read, "rb"), os.fdopen(answer_write, "wb")
        with reads, writes:
            Agent(LineChannel(reads, writes), hosts.addresses[at], clock=clock).run()

    thread = threading.Thread(target=work, name=f"agent {at}")
    thread.start()
    channel = LineChannel(os.fdopen(answer_read, "rb"), os.fdopen(request_write, "wb"))
    return Node(f"host-{at}", channel, hosts.addresses[at]), thread


@contextmanager
def coordinated(
    hosts: Hosts,
    clocks: Mapping[int, Callable[[], float]] | None = None,
    others: Mapping[int, Node] | None = None,
    settings: Settings = FAST,
) -> Iterator[Coordinator]:
    """A coordinator of agents on all hosts. `others` replaces the agents of some."""
    threads, nodes = [], []
    for at in range(len(hosts.names)):
        if others and at in others:
            nodes.append(others[at])
            continue
        node, thread = thread_agent(hosts, at, (clocks or {}).get(at, time.time))
        threads.append(thread)
        nodes.append(node)
    coordinator = Coordinator(nodes, settings.patience, settings.join)
    try:
        yield coordinator
    finally:
        coordinator.close()
        for thread in threads:
            thread.join(HANG)
