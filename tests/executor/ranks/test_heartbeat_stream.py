"""Lines between hosts: messages in order, signs of life, silence, ends."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import pytest

from penstock.executor.ranks import HeartbeatStream

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

from penstock._native import Stream, StreamListener
from tests.limits import HANG

KEY = bytes(range(32))
LIMIT = 1 << 16
SILENCE, LONGER = 6.0, 7.0
"""Seconds without a heartbeat after which a peer is lost, more than a busy machine causes; and a
longer time.
"""


def streams() -> tuple[Stream, Stream]:
    listener = StreamListener("127.0.0.1:0", KEY)
    found: list[Stream] = []
    caller = threading.Thread(
        target=lambda: found.append(Stream.connect(listener.address, KEY, HANG))
    )
    caller.start()
    accepted = listener.accept(HANG)
    caller.join()
    return accepted, found[0]


class Ends:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.said = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self.said.set()


def ignore(_: str) -> None:
    pass


def test_a_peer_that_holds_its_interpreter_is_alive() -> None:
    here, there = streams()
    ends = Ends()
    line = HeartbeatStream(here, LIMIT, SILENCE, ends)
    other = HeartbeatStream(there, LIMIT, SILENCE, ends)
    # Unlike CDLL it does not give the interpreter to other threads.
    ctypes.PyDLL(None).usleep(round(1e6 * LONGER))
    other.send(b"still there")
    assert line.receive(HANG) == b"still there"
    assert not ends.reasons
    line.close("over")
    other.close("over")


def test_messages_arrive_in_order_and_signs_of_life_do_not() -> None:
    here, there = streams()
    ends = Ends()
    line, other = (
        HeartbeatStream(here, LIMIT, SILENCE, ends),
        HeartbeatStream(there, LIMIT, SILENCE, ignore),
    )
    messages = [b"one", b"t" * LIMIT, b"three"]
    for message in messages:
        other.send(message)
    assert [line.receive(HANG) for _ in messages] == messages
    assert line.receive(0.0) is None
    time.sleep(LONGER)
    assert not line.ready()
    line.send(b"still there")
    assert other.receive(HANG) == b"still there"
    assert ends.reasons == []
    line.end("enough")
    other.end("enough")
    assert ends.reasons == ["enough"]


def test_silence_is_an_end() -> None:
    here, there = streams()
    ends = Ends()
    line = HeartbeatStream(here, LIMIT, 0.5, ends)
    there.send(b"last")
    assert ends.said.wait(HANG)
    assert "nothing was heard for " in ends.reasons[0]
    assert line.ready()
    assert line.receive(HANG) == b"last"
    for refused in (lambda: line.receive(HANG), lambda: line.send(b"x")):
        with pytest.raises(ConnectionError, match="nothing was heard"):
            refused()
    line.end("again")
    assert len(ends.reasons) == 1


@pytest.mark.parametrize(
    "end", [lambda stream: stream.end(), lambda stream: stream.send(b"x" * (LIMIT + 1))]
)
def test_an_end_wakes_whoever_waits(end: Callable[[Stream], None]) -> None:
    here, there = streams()
    line = HeartbeatStream(here, LIMIT, HANG, ignore)
    threading.Timer(0.2, end, (there,)).start()
    with pytest.raises(ConnectionError):
        line.receive(HANG)
