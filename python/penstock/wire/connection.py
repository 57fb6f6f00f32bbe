"""The engine's socket to its front door."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from os import PathLike

from penstock.core import Request
from penstock.wire.codec import MAX_FRAME_BYTES, FrameReader, decode_front_frame, encode
from penstock.wire.errors import ConnectionClosed
from penstock.wire.frames import EngineFrame, FrontFrame

_READ_BYTES = 256 << 10
_MAX_UNSENT_BYTES = MAX_FRAME_BYTES


class Connection:
    """A unix socket that never blocks the engine while its peer is slow.

    What the kernel does not take at once is kept and sent by later calls. A send that waits
    receives too. Not for several threads. Methods raise ConnectionClosed when the front door is
    gone and FrameError when it breaks the protocol. `clock` stamps `Request.arrived`.
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
                f"cannot connect to the front door at {path}: {error}"
            ) from error
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._reader = FrameReader(decode_front_frame)
        self._space = memoryview(bytearray(_READ_BYTES))
        self._received: list[FrontFrame] = []
        self._unsent = bytearray()

    def send(self, frame: EngineFrame) -> None:
        """Sends `frame` or keeps it to be sent. Waits only while 64 MiB are unsent and receives
        meanwhile.
        """
        data = encode(frame)
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
        """The frames that have arrived; waits up to `timeout` seconds for the first one. 0 never
        waits.
        """
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
        """Closes the socket after up to `timeout` seconds of sending what is unsent."""
        deadline = time.monotonic() + timeout
        try:
            while self._unsent and (remaining := deadline - time.monotonic()) > 0:
                self._wait(remaining)
                self._receive()
                self._flush()
        except ConnectionClosed:
            pass  # nobody is left to send to, which ends the wish to
        finally:
            self._socket.close()

    def _wait(self, timeout: float | None) -> None:
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        # Rounded up: a wait of 0 ms for a remaining fraction would spin.
        self._poll.poll(None if timeout is None else int(timeout * 1000) + 1)

    def _receive(self) -> None:
        """Takes up to one buffer: a front door that never stops talking does not hold up the step."""
        try:
            count = self._socket.recv_into(self._space)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionClosed(f"the connection to the front door broke: {error}") from error
        if count == 0:
            raise ConnectionClosed("the front door closed the connection")
        now = self._clock()
        for frame in self._reader.feed(self._space[:count]):
            self._received.append(
                replace(frame, arrived=now) if isinstance(frame, Request) else frame
            )

    def _flush(self) -> None:
        if self._unsent:
            del self._unsent[: self._write(self._unsent)]

    def _write(self, data: bytes | bytearray) -> int:
        """Bytes the kernel took."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionClosed(f"the connection to the front door broke: {error}") from error
