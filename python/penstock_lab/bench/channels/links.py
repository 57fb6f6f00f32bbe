"""Links of a worker to its neighbours: rings in shared memory, and authenticated TCP streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock._native import RingReader, RingWriter, Stream

PATIENCE = 60.0
"""Seconds without a message after which a link is broken."""
CELLS = 2
"""Maximum messages in flight on a ring."""


class Link(Protocol):
    def send(self, message: bytes) -> None: ...
    def receive(self) -> bytes:
        """The next message. Raises TimeoutError after PATIENCE seconds."""


def received(message: bytes | None) -> bytes:
    if message is None:
        raise TimeoutError(f"no message for {PATIENCE:g} s")
    return message


@dataclass(frozen=True, slots=True)
class RingLink:
    """A ring in each direction; None for the direction that a neighbour does not use."""

    outgoing: RingWriter | None
    incoming: RingReader | None

    def send(self, message: bytes) -> None:
        assert self.outgoing is not None
        self.outgoing.send(message)

    def receive(self) -> bytes:
        assert self.incoming is not None
        return received(self.incoming.receive(PATIENCE))


@dataclass(frozen=True, slots=True)
class StreamLink:
    stream: Stream
    limit: int
    """Maximum bytes of a message."""

    def send(self, message: bytes) -> None:
        self.stream.send(message)

    def receive(self) -> bytes:
        return received(self.stream.receive(PATIENCE, self.limit))


def writer(ring: dict[str, Any]) -> RingWriter:
    """The end of a ring (`SharedFiles.ring`) that sends."""
    return RingWriter(**ring, readers=1, patience=PATIENCE)


def reader(ring: dict[str, Any]) -> RingReader:
    """The only receiving end of a ring."""
    return RingReader(**ring, reader=0, readers=1)
