"""What is said of a loss: the best account that comes in time, whichever comes first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from threading import Condition
from typing import cast

import pytest
from penstock.executor.exits import Exit
from penstock.executor.nodes.crew import Crew
from penstock.executor.nodes.messages import (
    End,
    Ended,
    Gone,
    Message,
    Started,
    Unable,
    decode,
    encode,
)
from penstock.executor.nodes.muster import Member
from penstock.executor.nodes.places import Node
from penstock.ranks import Line

HANG = 10.0
NODES = [Node(0, "10.0.0.1"), Node(1, "10.0.0.2"), Node(2, "10.0.0.3")]


class FakeLine:
    """What a node says is put in by the test; it answers an end at once unless it is `deaf`."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.deaf = False
        self._messages: deque[bytes] = deque()
        self._reason = ""
        self._news = Condition()

    def hear(self, message: Message) -> None:
        with self._news:
            self._messages.append(encode(message))
            self._news.notify()

    def send(self, message: bytes) -> None:
        if self._reason:
            raise ConnectionError(self._reason)
        self.said.append(decode(message))
        if isinstance(self.said[-1], End) and not self.deaf:
            self.hear(Ended())

    def receive(self, timeout: float) -> bytes | None:
        with self._news:
            self._news.wait_for(lambda: self._messages or self._reason, timeout)
            if self._messages:
                return self._messages.popleft()
            if self._reason:
                raise ConnectionError(self._reason)
            return None

    def end(self, reason: str) -> None:
        with self._news:
            self._reason = self._reason or reason
            self._news.notify()


class Fleet:
    """Node 0 and two others, a rank on each."""

    def __init__(self) -> None:
        self.lines = [FakeLine(), FakeLine()]
        self.exits: list[Exit] = []
        members = [
            Member(node, "10.0.0.1", cast(Line, line))
            for node, line in zip(NODES[1:], self.lines, strict=True)
        ]
        self.crew = Crew(members, NODES, self.exits.append)

    def told(self) -> str:
        """What is said of the first loss, once it is."""
        deadline = time.monotonic() + HANG
        while not self.exits:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(0.05)
        (only,) = self.exits
        return only.how


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    made.crew.end(0.0)


def test_a_kill_is_named_though_the_line_ended_first(fleet: Fleet) -> None:
    fleet.crew.on_line_end(1, "the other end closed the stream")
    fleet.lines[1].hear(Gone(2, "rank 2 exited with status 1", killed=False))
    fleet.lines[0].hear(Gone(1, "rank 1 was killed by signal 9 (SIGKILL)", killed=True))
    assert fleet.told() == "rank 1 was killed by signal 9 (SIGKILL)"


def test_an_exit_is_named_before_the_end_of_a_line(fleet: Fleet) -> None:
    fleet.crew.on_line_end(2, "the other end closed the stream")
    fleet.crew.on_local_exit(Exit(0, "rank 0 exited with status 1", time.monotonic()))
    assert fleet.told() == "rank 0 exited with status 1"


def test_the_end_of_a_line_is_told_where_nobody_knows_more(fleet: Fleet) -> None:
    fleet.crew.on_line_end(1, "nothing was heard for 1.3 s")
    assert fleet.told() == "rank 1 on node 1 (10.0.0.2) was lost: nothing was heard for 1.3 s"


def test_the_loss_of_a_node_is_told_at_once_and_nobody_waits_for_it(fleet: Fleet) -> None:
    fleet.lines[1].end("nothing was heard for 1.3 s")
    assert fleet.told() == "node 2 (10.0.0.3) was lost: nothing was heard for 1.3 s"
    began = time.monotonic()
    assert not fleet.crew.all_ended(HANG)
    fleet.crew.end()
    assert time.monotonic() - began < HANG / 2


def test_what_a_node_cannot_do_is_told_with_its_name(fleet: Fleet) -> None:
    fleet.lines[0].hear(Unable("out of processes"))
    assert fleet.told() == "node 1 (10.0.0.2): out of processes"


def test_an_end_waits_for_the_ranks_of_all_nodes(fleet: Fleet) -> None:
    fleet.lines[0].hear(Started([11]))
    fleet.lines[1].hear(Started([12]))
    fleet.lines[1].deaf = True
    assert not fleet.crew.all_ended(0.05)
    assert fleet.crew.pids == [11, 12]
    fleet.lines[1].hear(Ended())
    fleet.crew.end()
    assert [line.said for line in fleet.lines] == [[End(5.0)], [End(5.0)]]
    assert fleet.crew.all_ended(0.0)
    assert fleet.exits == []
