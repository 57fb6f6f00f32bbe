"""The publisher against libzmq and msgspec, as a subscriber of vLLM's events reads them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from penstock.kv import KvEvents
from tests.limits import HANG

native = pytest.importorskip("penstock._native", reason="the extension is not built")

HANG_MS = round(HANG * 1000)
END = b"\xff" * 8


class Event(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """As in vLLM."""


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None = None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(Batch).decode


def digest(number: int, salted: bool = False) -> bytes:
    return (b"\1\2\3\4" if salted else bytes(4)) + bytes(20) + number.to_bytes(8, "big")


def publish(publisher: KvEvents, *numbers: int) -> None:
    for number in numbers:
        publisher.stored(digest(number), None, array("i", [number, 2]))
        publisher.flush()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


def socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, port: int) -> zmq.Socket[bytes]:
    made = context.socket(kind)
    made.linger = 0
    made.rcvtimeo = HANG_MS
    if kind == zmq.SUB:
        made.subscribe(b"kv")
    made.connect(f"tcp://127.0.0.1:{port}")
    return made


def replayed(asking: zmq.Socket[bytes], first: int) -> list[int]:
    """Numbers of the batches that are sent again."""
    asking.send_multipart([b"", first.to_bytes(8, "big")])
    numbers = []
    while True:
        empty, number, payload = asking.recv_multipart()
        assert empty == b""
        if number == END:
            assert payload == b""
            return numbers
        decode(payload)
        numbers.append(int.from_bytes(number, "big"))


def test_subscribers_read_what_vllm_would_send(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    publisher = native.KvEventPublisher("tcp://*:0", "tcp://*:0", "kv@pod@m", 1000, 1000)
    events, replay = publisher.ports()
    with (
        socket(context, zmq.SUB, events) as subscriber,
        socket(context, zmq.DEALER, replay) as asking,
    ):
        publish(publisher, 0)
        while not subscriber.poll(20):  # until the subscription has arrived
            publish(publisher, 1)
        topic, number, _ = subscriber.recv_multipart()
        assert topic == b"kv@pod@m"
        while subscriber.poll(200):
            number = subscriber.recv_multipart()[1]
        publisher.stored(digest(7), None, array("i", [5, 6, 70_000, 8]))
        publisher.stored(digest(8), digest(7), array("i", [1, 2, 3, 4]))
        publisher.removed(digest(7))
        publisher.stored(digest(9, salted=True), None, array("i", [1]))
        publisher.flush()
        publisher.flush()
        _, following, payload = subscriber.recv_multipart()
        assert int.from_bytes(following, "big") == int.from_bytes(number, "big") + 1
        batch = decode(payload)
        assert batch.events == [
            BlockStored([7, 8], None, [5, 6, 70_000, 8, 1, 2, 3, 4], 4, None, "GPU"),
            BlockRemoved([7], "GPU"),
            BlockStored([9], None, [1], 1, None, "GPU", None, [("01020304",)]),
        ]
        assert batch.ts > 1.6e9
        assert batch.data_parallel_rank == 0
        last = int.from_bytes(following, "big")
        assert replayed(asking, 0) == list(range(last + 1))
        assert replayed(asking, last) == [last]
        assert replayed(asking, last + 1) == []
        assert not subscriber.poll(50), "an empty batch"


def test_the_past_is_bounded_and_begins_with_a_clear(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    publisher = native.KvEventPublisher("tcp://*:0", "tcp://*:0", "", 3, 1000)
    publisher.flush()
    with socket(context, zmq.DEALER, publisher.ports()[1]) as asking:
        asking.send_multipart([b"", bytes(8)])
        assert decode(asking.recv_multipart()[2]).events == [AllBlocksCleared()]
        assert asking.recv_multipart()[1] == END
        publish(publisher, *range(10))
        assert replayed(asking, 0) == [8, 9, 10]
        asking.send_multipart([b"", b"no number"])
        asking.send_multipart([b"a", b"b", b"c"])
        assert replayed(asking, 10) == [10]


def test_it_connects_where_a_subscriber_listens(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        subscriber.rcvtimeo = HANG_MS
        subscriber.subscribe(b"")
        port = subscriber.bind_to_random_port("tcp://127.0.0.1")
        publisher = native.KvEventPublisher(f"tcp://127.0.0.1:{port}", None, "", 10, 1000)
        publish(publisher, 0)
        while not subscriber.poll(20):
            publish(publisher, 1)
        assert decode(subscriber.recv_multipart()[2]).events


def test_wrong_endpoints_are_refused() -> None:
    with pytest.raises(ValueError, match="ipc"):
        native.KvEventPublisher("ipc:///run/x", None, "", 1, 1)
    publisher = native.KvEventPublisher("tcp://*:0", None, "", 1, 1)
    with pytest.raises(RuntimeError, match="cannot listen"):
        native.KvEventPublisher(f"tcp://*:{publisher.ports()[0]}", None, "", 1, 1)
