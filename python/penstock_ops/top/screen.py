"""The terminal as a screen: draws lines, reads keys, and restores the terminal at the end, also
after an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self

from penstock_ops.top.table import Line

STYLES = {
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "reverse": "\x1b[7m",
}
WITHOUT_COLOURS = {"bold": "\x1b[1m", "reverse": "\x1b[7m"}
"""Styles if $NO_COLOR is set. The selected row must still be visible."""
RESET = "\x1b[0m"
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Switch to the alternate screen, hide the cursor, and disable line wrapping."""
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[A-Za-z])")
KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}
SINGLE = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}
SMALL = (80, 24)


class Screen:
    """The terminal of two file descriptors, in use during a `with` block."""

    def __init__(self, source: int, sink: int, *, coloured: bool, encoding: str = "utf-8") -> None:
        self._source, self._sink = source, sink
        self._styles = STYLES if coloured else WITHOUT_COLOURS
        self._encoding = encoding
        self._wake, self._waker = os.pipe()
        self._kept: list[object] = []
        self._handlers: dict[signal.Signals, object] = {}
        self._drawn = (0, 0)

    def __enter__(self) -> Self:
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wake, False)
        self._kept = termios.tcgetattr(self._source)
        for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            self._handlers[number] = signal.signal(number, self._signalled)
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._close()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            os.close(self._wake)
            os.close(self._waker)

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            found = os.get_terminal_size(self._sink)
        except OSError:
            return SMALL
        return (found.columns or SMALL[0], found.lines or SMALL[1])

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw the lines from the top of the screen in one write, and clear the rest."""
        size = self.size()
        parts = ["\x1b[2J"] if size != self._drawn else []
        self._drawn = size
        for number, line in enumerate(lines, 1):
            # Clear the line before writing. After writing the last column the cursor would still be
            # on it, and clearing would erase it.
            parts.append(f"\x1b[{number};1H\x1b[K")
            for text, style in line:
                begin = self._styles.get(style, "")
                parts.append(f"{begin}{text}{RESET}" if begin else text)
        if len(lines) < size[1]:
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._write("".join(parts))

    def keys(self, seconds: float) -> list[str]:
        """The pressed keys: waits up to `seconds` for the first key, or for a resize. Raises
        EOFError when the terminal is closed.
        """
        ready, _, _ = select.select([self._source, self._wake], [], [], max(seconds, 0.0))
        if self._wake in ready:
            os.read(self._wake, 512)
        if self._source not in ready:
            return []
        found = os.read(self._source, 1024)
        if not found:
            raise EOFError
        if found.endswith(b"\x1b") and select.select([self._source], [], [], 0.03)[0]:
            found += os.read(self._source, 1024)
        return decoded(found)

    def _open(self) -> None:
        tty.setcbreak(self._source)
        self._drawn = (0, 0)
        self._write(ENTER)

    def _close(self) -> None:
        try:
            self._write(LEAVE)
        finally:
            termios.tcsetattr(self._source, termios.TCSADRAIN, self._kept)  # type: ignore[arg-type]

    def _write(self, text: str) -> None:
        left = text.encode(self._encoding, "replace")
        while left:
            left = left[os.write(self._sink, left) :]

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGHUP):
            raise SystemExit(128 + number)
        if number == signal.SIGTSTP:
            self._stop()
        self._changed()

    def _stop(self) -> None:
        """Handle Ctrl-Z: restore the terminal, stop the process, and set the terminal up again when
        the job continues.
        """
        self._close()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        signal.signal(signal.SIGTSTP, self._signalled)
        self._open()

    def _changed(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"!")


def decoded(typed: bytes) -> list[str]:
    """Names of keys, and characters. Unknown escape sequences are dropped."""
    keys, place = [], 0
    while place < len(typed):
        if found := SEQUENCE.match(typed, place):
            keys.append(KEYS.get(found[0], ""))
            place = found.end()
            continue
        if typed[place] == 0x1B:
            keys.append("escape")
            place += 1
            continue
        end = typed.find(b"\x1b", place)
        end = len(typed) if end < 0 else end
        keys += [SINGLE.get(one, one) for one in typed[place:end].decode(errors="ignore")]
        place = end
    return [key for key in keys if key]
