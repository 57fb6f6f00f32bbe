"""Messages between the coordinator and an agent: JSON objects, over a pipe one on each line.

Both ends bound a message's size and the time of each wait.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Protocol

from penstock.config.sources import tool_environment
from penstock.core import PenstockError
from penstock.executor.ranks import HeartbeatStream

if TYPE_CHECKING:
    from penstock._native import Stream

MOST_BYTES = 64 << 20
"""Maximum size of a message: the evidence of a node's checks is the largest."""
REQUEST_BYTES = 48 << 10
"""Maximum size of a request, below a pipe's capacity of 64 KiB (pipe(7)): a request to an agent
that does not read must not block the coordinator.
"""
PREAMBLE_LINES = 64
"""Lines that a login shell may print before an agent's first message."""
SILENCE = 5.0
"""Seconds without a heartbeat after which the peer of a TCP channel counts as lost."""
NOTICE = 2.0
"""Seconds that an agent gets to end."""
STDERR_LINES = 8


class LostError(PenstockError):
    """The peer has ended, is silent, or sent something else than expected."""


class Channel(Protocol):
    def send(self, message: Mapping[str, Any]) -> None:
        """LostError if the peer has ended."""

    def receive(self, seconds: float | None) -> dict[str, Any]:
        """The next message; None waits without limit. LostError if none arrives."""

    def close(self) -> None: ...


def encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """LostError for anything but a JSON object."""
    try:
        message = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise LostError(f"it sent {line[:60]!r}, expected a JSON object") from error
    if not isinstance(message, dict):
        raise LostError(f"it sent {line[:60]!r}, expected a JSON object")
    return message


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class LineChannel:
    """Messages over two files. `on_end` is called, on a thread, when the peer closes its end."""

    most_sent = MOST_BYTES

    def __init__(
        self, reads: IO[bytes], writes: IO[bytes], on_end: Callable[[], None] | None = None
    ) -> None:
        self._reads = reads
        self._writes = writes
        self._on_end = on_end
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._preamble = PREAMBLE_LINES
        self._thread = threading.Thread(target=self._listen, name="lines", daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        data = encode(message)
        if len(data) > self.most_sent:
            raise LostError(f"a message to it has {len(data)} bytes, at most {self.most_sent}")
        try:
            self._writes.write(data)
            self._writes.flush()
        except (OSError, ValueError) as error:
            raise LostError(self.ending()) from error

    def receive(self, seconds: float | None) -> dict[str, Any]:
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except Empty:
                raise LostError(f"no answer after {seconds:g} s") from None
            if not line:
                self._lines.put(b"")
                raise LostError(self.ending())
            if len(line) > MOST_BYTES:
                raise LostError(f"a message of more than {MOST_BYTES >> 20} MiB")
            # What a login shell prints comes before the agent's first message.
            if self._preamble and not line.startswith(b"{"):
                self._preamble -= 1
                continue
            self._preamble = 0
            return decode(line)

    def ending(self) -> str:
        """The reason of the end, in words."""
        return "it closed its end"

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._writes.close()

    def _listen(self) -> None:
        line = b"-"
        with suppress(OSError, ValueError):
            while line:
                line = self._reads.readline(MOST_BYTES + 1)
                self._lines.put(line)
        self._lines.put(b"")
        if self._on_end is not None:
            self._on_end()


class CommandChannel(LineChannel):
    """An agent that a command starts, such as ssh. Its process group ends with the channel."""

    most_sent = REQUEST_BYTES

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=tool_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise LostError(f"{words[0]}: {error.strerror}") from error
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._errors: deque[bytes] = deque(maxlen=STDERR_LINES)
        self._error_thread = threading.Thread(
            target=self._read_errors, args=(self._process.stderr,), name="stderr", daemon=True
        )
        self._error_thread.start()
        super().__init__(self._process.stdout, self._process.stdin)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(NOTICE)
        self._error_thread.join(NOTICE)
        text = b"".join(self._errors).decode("utf-8", "replace").strip()
        status = self._process.poll()
        name = self._words[0]
        return f"{name} ended with status {status}: {text[-300:] or 'no message'}"

    def close(self) -> None:
        super().close()
        try:
            self._process.wait(NOTICE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for thread in (self._thread, self._error_thread):
            thread.join(NOTICE)
        for file in (self._process.stdout, self._process.stderr):
            if file:
                file.close()

    def _read_errors(self, file: IO[bytes]) -> None:
        with suppress(OSError, ValueError):
            while line := file.readline(1 << 12):
                self._errors.append(line)


class StreamChannel:
    """Messages over an authenticated stream between two hosts, which has heartbeats."""

    def __init__(self, stream: Stream, on_end: Callable[[], None] | None = None) -> None:
        end = on_end or (lambda: None)
        self._stream = HeartbeatStream(stream, MOST_BYTES, SILENCE, lambda _: end())

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._stream.send(encode(message))
        except ConnectionError as error:
            raise LostError(str(error)) from error

    def receive(self, seconds: float | None) -> dict[str, Any]:
        try:
            while (data := self._stream.receive(seconds or SILENCE)) is None:
                if seconds is not None:
                    raise LostError(f"no answer after {seconds:g} s")
        except ConnectionError as error:
            raise LostError(str(error)) from error
        return decode(data)

    def close(self) -> None:
        self._stream.close("the checks have ended")


def standard_channel(on_end: Callable[[], None]) -> LineChannel:
    """The channel of an agent that ssh started."""
    # What else prints must not come between messages.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return LineChannel(sys.stdin.buffer, output, on_end)
