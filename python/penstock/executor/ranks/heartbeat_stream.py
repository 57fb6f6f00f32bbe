"""Stream to another host, with heartbeats: a host that becomes unreachable does not close its
connections.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock._native import Stream

BEAT = 0.25
"""Seconds between heartbeats, which are empty messages."""


class HeartbeatStream:
    """Receives messages of at most `limit` bytes. If the peer ends the stream or is silent for
    `silence` seconds, `on_end` is called once, on a thread, with the reason. After that all methods
    raise ConnectionError.
    """

    def __init__(
        self, stream: Stream, limit: int, silence: float, on_end: Callable[[str], None]
    ) -> None:
        self._stream = stream
        self._limit = limit
        self._silence = silence
        self._on_end = on_end
        self._messages: deque[tuple[float, bytes]] = deque()
        self._news = threading.Condition()
        self._reason: str | None = None
        self.arrived = 0.0
        """Arrival time of the message that `receive` returned last, in monotonic seconds of this
        host.
        """
        self._thread = threading.Thread(target=self._listen, name="stream", daemon=True)
        self._thread.start()
        stream.beat(BEAT)

    def send(self, message: bytes) -> None:
        if self._reason is not None:
            raise ConnectionError(self._reason)
        self._stream.send(message)

    def receive(self, timeout: float) -> bytes | None:
        """The next message; None if none arrives within `timeout` seconds. Messages that arrived
        before the end can still be received after it.
        """
        with self._news:
            self._news.wait_for(lambda: self._messages or self._reason is not None, timeout)
            if self._messages:
                self.arrived, message = self._messages.popleft()
                return message
            if self._reason is not None:
                raise ConnectionError(self._reason)
            return None

    @property
    def ended(self) -> str:
        """The reason of the end; empty while the stream is open."""
        return self._reason or ""

    def ready(self) -> bool:
        return bool(self._messages)

    def end(self, reason: str) -> None:
        """End the stream, which ends all waits on both sides. Only the first reason is kept."""
        with self._news:
            if self._reason is not None:
                return
            self._reason = reason
            self._news.notify_all()
        self._stream.end()
        self._on_end(reason)

    def close(self, reason: str) -> None:
        """Call `end`, then join the receiving thread: the process must not exit while that thread
        waits in native code.
        """
        self.end(reason)
        self._thread.join()

    def _listen(self) -> None:
        heard = time.monotonic()
        try:
            while (message := self._stream.receive(self._silence, self._limit)) is not None:
                heard = time.monotonic()
                if message:
                    self._arrive(message)
            self.end(f"nothing was heard for {time.monotonic() - heard:.1f} s")
        except ConnectionError as error:
            self.end(str(error))

    def _arrive(self, message: bytes) -> None:
        with self._news:
            self._messages.append((time.monotonic(), message))
            self._news.notify()
