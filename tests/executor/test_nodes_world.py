"""Accounts of a loss: the best that comes in time is reported, whichever comes first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from threading import Condition
from typing import cast

import pytest

from penstock.executor.nodes import world
from penstock.executor.nodes.messages import (
    End,
    Ended,
    Message,
    RankLoss,
    Started,
    Unable,
    decode,
    encode,
)
from penstock.executor.nodes.rank_assignment import Node
from penstock.executor.nodes.rendezvous import Member
from penstock.executor.nodes.world import World
from penstock.executor.processes import RankExit
from penstock.executor.ranks import HeartbeatStream
from tests.limits import HANG

NODES = [Node(0, "10.0.0.1"), Node(1, "10.0.0.2"), Node(2, "10.0.0.3")]


class FakeStream:
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


class Launch:
    """Node 0 and two others, a rank on each."""

    def __init__(self) -> None:
        self.streams = [FakeStream(), FakeStream()]
        self.exits: list[RankExit] = []
        members = [
            Member(node, "10.0.0.1", cast(HeartbeatStream, line))
            for node, line in zip(NODES[1:], self.streams, strict=True)
        ]
        self.world = World(members, NODES, self.exits.append)

    def told(self) -> str:
        """What is said of the first loss, once it is."""
        deadline = time.monotonic() + HANG
        while not self.exits:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(0.05)
        (only,) = self.exits
        return only.reason


@pytest.fixture
def launch() -> Iterator[Launch]:
    made = Launch()
    yield made
    made.world.end(0.0)


def test_a_kill_is_named_though_the_stream_ended_first(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "REPORT", HANG)
    launch.world.on_stream_end(1, "the other end closed the stream")
    launch.streams[1].hear(RankLoss(2, "rank 2 exited with status 1", killed=False))
    launch.streams[0].hear(RankLoss(1, "rank 1 was killed by signal 9 (SIGKILL)", killed=True))
    assert launch.told() == "rank 1 was killed by signal 9 (SIGKILL)"


def test_an_exit_is_named_before_the_end_of_a_stream(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "REPORT", 5.0)  # The exit comes within it on a busy machine, too.
    launch.world.on_stream_end(2, "the other end closed the stream")
    launch.world.on_local_exit(RankExit(0, "rank 0 exited with status 1", time.monotonic()))
    assert launch.told() == "rank 0 exited with status 1"


def test_the_end_of_a_stream_is_reported_where_no_better_account_comes(launch: Launch) -> None:
    launch.world.on_stream_end(1, "nothing was heard for 1.3 s")
    assert launch.told() == "rank 1 on node 1 (10.0.0.2) was lost: nothing was heard for 1.3 s"


def test_the_loss_of_a_node_is_reported_at_once_and_not_waited_for(launch: Launch) -> None:
    launch.streams[1].end("nothing was heard for 1.3 s")
    assert launch.told() == "node 2 (10.0.0.3) was lost: nothing was heard for 1.3 s"
    began = time.monotonic()
    assert not launch.world.all_ended(HANG)
    launch.world.end()
    assert time.monotonic() - began < HANG / 2


def test_what_a_node_cannot_do_is_reported_with_its_name(launch: Launch) -> None:
    launch.streams[0].hear(Unable("out of processes"))
    assert launch.told() == "node 1 (10.0.0.2): out of processes"


def test_an_end_waits_for_the_ranks_of_all_nodes(launch: Launch) -> None:
    launch.streams[0].hear(Started([11]))
    launch.streams[1].hear(Started([12]))
    launch.streams[1].deaf = True
    assert not launch.world.all_ended(0.05)
    assert launch.world.pids == [11, 12]
    launch.streams[1].hear(Ended())
    launch.world.end()
    assert [line.said for line in launch.streams] == [[End(5.0)], [End(5.0)]]
    assert launch.world.all_ended(0.0)
    assert launch.exits == []
