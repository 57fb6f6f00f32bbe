"""The engine's connection to an API server that is slow, cuts frames, floods, or goes away."""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._native import FrameReader, encode_frame
from penstock.core import CodecError, EngineStats, GenerationParams, Request, StepOutputs
from penstock.engine.frontend import Cancel, Connection, ConnectionClosed, Fatal, Shutdown, Step
from tests.fakes.sampling import encode
from tests.limits import HANG

BIG_PROMPT = Request(1, array("i", range(500_000)), GenerationParams(), sampling=encode())
BIG_STEP = Step(
    1,
    EngineStats(),
    outputs=StepOutputs(
        ids=array("Q", range(100)),
        finish=array("B", bytes(100)),
        stop_tokens=array("i", [-1] * 100),
        cached_tokens=array("I", [0] * 100),
        queue_us=array("I", [0] * 100),
        counts=array("H", [50_000] * 100),
        tokens=array("I", range(5_000_000)),
    ),
)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Connection, socket.socket]]:
    """The engine's connection, whose clock stands at 12.5, and the API server's socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        connection = Connection(tmp_path / "s", clock=lambda: 12.5)
        front, _ = listener.accept()
    with front:
        front.settimeout(HANG)
        yield connection, front
        connection.close(0)


def test_frames_arrive_in_order_and_requests_are_stamped(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, front = ends
    request = Request(4, array("i", [1]), GenerationParams(), sampling=encode())
    front.sendall(encode_frame(request) + encode_frame(Cancel([4])) + encode_frame(Shutdown()))
    received = connection.poll(HANG)
    assert received == [
        Request(4, array("i", [1]), GenerationParams(), arrived=12.5, sampling=encode()),
        Cancel([4]),
        Shutdown(),
    ]
    assert connection.poll(0) == []


def test_a_poll_takes_what_has_arrived(ends: tuple[Connection, socket.socket]) -> None:
    """More than one buffer of 256 KiB: a CANCEL at the end comes with its request."""
    connection, front = ends
    front.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    request = Request(2, array("i", range(70_000)), GenerationParams(), sampling=encode())
    front.sendall(encode_frame(request) + encode_frame(Cancel([2])))
    assert [type(frame) for frame in connection.poll(0)] == [Request, Cancel]


def test_poll_waits_no_longer_than_asked(ends: tuple[Connection, socket.socket]) -> None:
    connection, front = ends
    started = time.monotonic()
    assert connection.poll(0) == []
    assert connection.poll(0.05) == []
    assert time.monotonic() - started >= 0.05
    timer = threading.Timer(0.05, front.sendall, [encode_frame(Shutdown())])
    timer.start()
    # Longer than pytest's limit for a test: it is the frame that ends the wait.
    assert connection.poll(3 * HANG) == [Shutdown()]
    timer.join()


def test_a_frame_in_pieces_is_one_frame(ends: tuple[Connection, socket.socket]) -> None:
    connection, front = ends
    data = encode_frame(Cancel([1, 2]))
    for at in range(len(data) - 1):
        front.sendall(data[at : at + 1])
        assert connection.poll(0) == []
    front.sendall(data[-1:])
    assert connection.poll(HANG) == [Cancel([1, 2])]


def test_a_slow_reader_does_not_block_sending(ends: tuple[Connection, socket.socket]) -> None:
    connection, front = ends
    connection.send(BIG_STEP)  # 20 MB, the kernel takes a fraction
    connection.send(Fatal("last"))
    reader = FrameReader(of_engine=True)
    received: list[object] = []
    while len(received) < 2:
        connection.poll(0)
        received += reader.feed(front.recv(1 << 20))
    assert received == [BIG_STEP, Fatal("last")]


def test_two_sides_that_only_send_do_not_deadlock(ends: tuple[Connection, socket.socket]) -> None:
    """The API server reads nothing until all that it sends is read, while the engine has too many
    unsent bytes.
    """
    connection, front = ends
    sent_by_front = 20
    reader = FrameReader(of_engine=True)
    received_by_front: list[object] = []

    def front_door() -> None:
        for _ in range(sent_by_front):
            front.sendall(encode_frame(BIG_PROMPT))
        while len(received_by_front) < 5:
            received_by_front.extend(reader.feed(front.recv(1 << 20)))

    thread = threading.Thread(target=front_door)
    thread.start()
    for _ in range(5):
        connection.send(BIG_STEP)
    received: list[object] = []
    while len(received) < sent_by_front or thread.is_alive():
        received += connection.poll(0.01)
    thread.join()
    assert len(received) == sent_by_front
    assert received_by_front == [BIG_STEP] * 5


def test_close_sends_the_rest(ends: tuple[Connection, socket.socket]) -> None:
    connection, front = ends
    connection.send(BIG_STEP)
    connection.send(Fatal("the last word"))
    closing = threading.Thread(target=connection.close, args=[HANG])
    closing.start()
    reader = FrameReader(of_engine=True)
    received: list[object] = []
    while data := front.recv(1 << 20):
        received += reader.feed(data)
    closing.join()
    assert received[-1] == Fatal("the last word")


def test_close_gives_up_on_a_front_door_that_does_not_read(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, _ = ends
    connection.send(BIG_STEP)
    connection.close(0.05)


def test_the_end_of_the_front_door_is_noticed_by_every_call(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, front = ends
    front.close()
    with pytest.raises(ConnectionClosed):
        connection.poll(HANG)
    with pytest.raises(ConnectionClosed):
        connection.send(Fatal("too late"))


def test_a_broken_frame_is_refused(ends: tuple[Connection, socket.socket]) -> None:
    connection, front = ends
    front.sendall(encode_frame(Fatal("engines say this, API servers do not")))
    with pytest.raises(CodecError, match="0x04 is not a frame type of this direction"):
        connection.poll(5)


def test_a_missing_front_door_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionClosed, match="cannot connect to the API server at"):
        Connection(tmp_path / "nothing")
