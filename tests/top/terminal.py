"""A command at a pseudo-terminal, and what a terminal of that size would show."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable

from tests.limits import HANG

SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


JOB = "set -m; {}; while [ $? -gt 128 ]; do echo STOPPED; read line; fg >/dev/null; done"
"""A shell with job control: without one, a job cannot be stopped from the keyboard. It continues a
job that was stopped after a line of input.
"""


class Picture:
    """The part of a terminal that `penstock top` uses. Any other sequence is an error."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.rows = [[" "] * columns for _ in range(lines)]
        self.modes: set[str] = set()
        self.row = self.column = 0
        self.is_behind = self.overflowed = False

    def feed(self, text: str) -> str:
        """Interpret `text`; returns what is left of a sequence that is not complete."""
        place = 0
        while place < len(text):
            if text[place] == "\x1b":
                found = SEQUENCE.match(text, place)
                if not found:
                    assert len(text) - place < 16, repr(text[place : place + 16])
                    return text[place:]
                self._sequence(*found.groups())
                place = found.end()
                continue
            self._put(text[place])
            place += 1
        return ""

    def _put(self, character: str) -> None:
        if "1049" not in self.modes:
            return
        assert character.isprintable(), repr(character)
        self.overflowed |= self.is_behind
        self.rows[self.row][self.column] = character
        # Behind the last column the cursor stays on it.
        self.is_behind = self.column == self.columns - 1
        self.column = min(self.column + 1, self.columns - 1)

    def _sequence(self, private: str, numbers: str, kind: str) -> None:
        if private:
            assert kind in "hl"
            (self.modes.add if kind == "h" else self.modes.discard)(numbers)
        elif kind == "H":
            row, column = map(int, numbers.split(";"))
            self.overflowed |= row > self.lines
            self.row, self.column = min(row, self.lines) - 1, column - 1
            self.is_behind = False
        elif kind == "K":
            self.rows[self.row][self.column :] = [" "] * (self.columns - self.column)
        elif kind == "J":
            self._clear(whole=numbers == "2")
        else:
            assert kind == "m", (numbers, kind)

    def _clear(self, *, whole: bool) -> None:
        if not whole:
            self.rows[self.row][self.column :] = [" "] * (self.columns - self.column)
        for number in range(0 if whole else self.row + 1, self.lines):
            self.rows[number] = [" "] * self.columns

    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.rows)


class Terminal:
    """`python -m penstock WORDS` at a pseudo-terminal of so many columns and lines."""

    def __init__(
        self,
        *words: str,
        columns: int,
        lines: int,
        under_a_shell: bool = False,
        **variables: str,
    ) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **variables}
            command = [sys.executable, "-m", "penstock", *words]
            if under_a_shell:
                command = ["/bin/sh", "-c", JOB.format(shlex.join(command))]
            os.execve(command[0], command, environment)
        self.everything = self._left = ""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        modes = self.picture.modes if hasattr(self, "picture") else set()
        self.picture = Picture(columns, lines)
        self.picture.modes = set(modes)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size)

    def until(self, *marks: str) -> str:
        """The picture, once it has all marks."""
        return self.when(lambda text: all(mark in text for mark in marks), repr(marks))

    def when(self, holds: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + HANG
        while not holds(self.picture.text()):
            assert time.monotonic() < deadline, f"{what} in\n{self.picture.text()}"
            self._read()
        return self.picture.text()

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], 0.05)[0]:
            return True
        try:
            text = os.read(self._descriptor, 1 << 16).decode(errors="replace")
        except OSError:
            return False
        self.everything += text
        self._left = self.picture.feed(self._left + text)
        return bool(text)

    def wait_for(self, mark: str) -> None:
        """Until `mark` was written, wherever it is on the screen."""
        deadline = time.monotonic() + HANG
        while mark not in self.everything:
            assert time.monotonic() < deadline, self.everything[-500:]
            self._read()

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def echoes(self) -> bool:
        """Whether the terminal is as it was before the command."""
        flags = termios.tcgetattr(self._descriptor)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """The exit status, once the command has ended by itself."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read() and select.select([self._descriptor], [], [], 0)[0]:
                    pass
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(self.picture.text())

    def close(self) -> None:
        os.close(self._descriptor)
