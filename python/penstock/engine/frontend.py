"""Frames (messages) between the API server and the engine as plain data, and the socket that
carries them (docs/wire.md).
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike

from penstock._native import WIRE_VERSION, FrameReader, encode_frame
from penstock.core import (
    EngineStats,
    KvCommand,
    KvReply,
    PenstockError,
    Pooler,
    Request,
    StepOutputs,
    TierKinds,
)

_READ_BYTES = 256 << 10
_MAX_POLL_BYTES = 16 << 20
_MAX_UNSENT_BYTES = 64 << 20


class ConnectionClosed(PenstockError):  # noqa: N818 - part of every normal shutdown
    """The API server has closed the connection, so the engine exits."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame that the engine sends on a connection."""

    pid: int
    wire_version: int = WIRE_VERSION


@dataclass(frozen=True, slots=True)
class Stage:
    """One start-up stage and its duration in seconds."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine has started, and accepts requests within these limits. `cache_identity` has 32
    bytes.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queue: int
    block_size: int
    num_blocks: int
    kv_bytes: int
    vocab_size: int
    eos_token_ids: Sequence[int]
    cache_identity: bytes
    numerics: str
    device: str
    threads: int
    kv_tiers: TierKinds = TierKinds.NONE
    pooler: Pooler = field(default_factory=Pooler)


@dataclass(frozen=True, slots=True)
class Fatal:
    """The engine cannot start or continue, and exits."""

    message: str


@dataclass(frozen=True, slots=True)
class Step:
    """Outputs of one engine step and the counters after it. A heartbeat has no outputs.

    `step` is the step's number, from 1; a heartbeat repeats the last number. `batch_tokens` tokens
    were computed in `step_ms` milliseconds.
    """

    step: int
    stats: EngineStats
    batch_tokens: int = 0
    step_ms: float = 0.0
    outputs: StepOutputs = field(default_factory=StepOutputs)


@dataclass(frozen=True, slots=True)
class Tiers:
    """State of the KV tiers as a JSON object, whose contents the wire format does not define."""

    report: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End these requests. Unknown ids are ignored, because a request may have just ended."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel all requests and exit with status 0."""


EngineFrame = Hello | Stage | Ready | Fatal | Step | Tiers | KvReply
FrontFrame = Request | Cancel | Shutdown | KvCommand


class Connection:
    """A Unix socket that does not block the engine when its peer is slow.

    Bytes that the kernel does not accept at once are buffered and sent by later calls. A send that
    has to wait receives frames meanwhile, which avoids a deadlock when both sides send. Not
    thread-safe. Methods raise ConnectionClosed if the API server has closed the connection, and
    CodecError for malformed frames. `clock` stamps `Request.arrived`.
    """

    def __init__(
        self, path: str | PathLike[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise ConnectionClosed(
                f"cannot connect to the API server at {path}: {error}"
            ) from error
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._reader = FrameReader()
        self._space = memoryview(bytearray(_READ_BYTES))
        self._received: list[FrontFrame] = []
        self._unsent = bytearray()

    def send(self, frame: EngineFrame) -> None:
        """Send `frame`, or buffer it. Blocks while more than 64 MiB are buffered, but still
        receives frames.
        """
        data = encode_frame(frame)
        if self._unsent:
            self._unsent += data
            self._flush()
        else:
            self._unsent += data[self._write(data) :]
        while len(self._unsent) > _MAX_UNSENT_BYTES:
            self._wait(None)
            self._receive()
            self._flush()

    def poll(self, timeout: float) -> list[FrontFrame]:
        """Return the frames that have arrived. Waits up to `timeout` seconds for the first."""
        deadline = time.monotonic() + timeout
        while True:
            self._receive()
            self._flush()
            remaining = deadline - time.monotonic()
            if self._received or remaining <= 0:
                break
            self._wait(remaining)
        frames, self._received = self._received, []
        return frames

    def close(self, timeout: float = 1.0) -> None:
        """Close the socket. Spends up to `timeout` seconds on sending buffered bytes."""
        deadline = time.monotonic() + timeout
        try:
            while self._unsent and (remaining := deadline - time.monotonic()) > 0:
                self._wait(remaining)
                self._receive()
                self._flush()
        except ConnectionClosed:
            pass  # The API server has closed the connection.
        finally:
            self._socket.close()

    def _wait(self, timeout: float | None) -> None:
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        # Round up to whole milliseconds. Otherwise the last fraction of a millisecond would be a
        # timeout of 0 and a busy-wait.
        self._poll.poll(None if timeout is None else int(timeout * 1000) + 1)

    def _receive(self) -> None:
        """Read all frames that have arrived, so that a CANCEL takes effect before the request that
        it ends reaches a step. Reads at most 16 MiB, so that a flood of frames cannot delay the
        step.
        """
        for _ in range(_MAX_POLL_BYTES // _READ_BYTES):
            try:
                count = self._socket.recv_into(self._space)
            except BlockingIOError:
                return
            except OSError as error:
                raise _broken(error) from error
            if count == 0:
                raise ConnectionClosed("the API server closed the connection")
            self._received += self._reader.feed(self._space[:count], self._clock())

    def _flush(self) -> None:
        if self._unsent:
            del self._unsent[: self._write(self._unsent)]

    def _write(self, data: bytes | bytearray) -> int:
        """Write without waiting. Returns the number of bytes that the kernel accepted."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _broken(error) from error


def _broken(error: OSError) -> ConnectionClosed:
    return ConnectionClosed(f"the connection to the API server broke: {error}")
