from __future__ import annotations

import os
import pty
import signal
import termios
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.top.screen import ENTER, LEAVE, Screen, decoded
from penstock_ops.top.table import Span


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal, the user's first."""
    user, program = pty.openpty()
    yield user, program
    os.close(user)
    os.close(program)


def modes(descriptor: int) -> list[object]:
    return list(termios.tcgetattr(descriptor))


def shown(user: int, end: str) -> str:
    """What the program has written, up to its end."""
    written = ""
    while not written.endswith(end):
        written += os.read(user, 4096).decode()
    return written


def fail(program: int, error: type[BaseException]) -> None:
    before = modes(program)
    with Screen(program, program, coloured=True) as screen:
        assert modes(program) != before
        screen.draw([(Span("x", "red"),)])
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_terminal_is_restored_after_any_error(
    pair: tuple[int, int], error: type[BaseException]
) -> None:
    user, program = pair
    before, handler = modes(program), signal.getsignal(signal.SIGTERM)
    with pytest.raises(error):
        fail(program, error)
    assert modes(program) == before
    assert signal.getsignal(signal.SIGTERM) == handler
    written = shown(user, LEAVE)
    assert written.startswith(ENTER)
    assert "\x1b[31mx\x1b[0m" in written


def test_characters_that_the_terminal_has_not_are_replaced(pair: tuple[int, int]) -> None:
    user, program = pair
    with Screen(program, program, coloured=False, encoding="ascii") as screen:
        screen.draw([(Span("模型", "green"),)])
    assert "??" in shown(user, LEAVE)


def test_keys(pair: tuple[int, int]) -> None:
    user, program = pair
    with Screen(program, program, coloured=True) as screen:
        assert screen.keys(0.0) == []
        os.write(user, b"q\x1b[A\x1b[5~\r/\x7f\x1b")
        assert screen.keys(5.0) == ["q", "up", "page up", "enter", "/", "backspace", "escape"]
        os.kill(os.getpid(), signal.SIGWINCH)
        assert screen.keys(5.0) == [], "a new size wakes it"


def test_other_sequences_are_left_out() -> None:
    assert decoded(b"\x1b[<0;3;4Ma\x1b[15~\x1bOPb\xc3\xa9\xff") == ["a", "b", "é"]


@given(st.binary(max_size=60))
def test_any_bytes_are_keys(typed: bytes) -> None:
    assert all(decoded(typed)) or decoded(typed) == []
