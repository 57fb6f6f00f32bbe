"""Progress of loading on a terminal and in the log."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import struct
import termios

import pytest

from penstock.engine.load_report import LoadReport


class Clock:
    def __init__(self) -> None:
        self.now = 7.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_has_one_line_that_is_written_anew_and_taken_away() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    report = LoadReport(terminal=True, descriptor=theirs)
    report("1.00 of 2.00 GiB (50%)")
    report("x" * 200)
    report.end()
    report.end()
    first, second = (
        "loading weights: 1.00 of 2.00 GiB (50%)",
        ("loading weights: " + "x" * 200)[:59],
    )
    wanted, seen = f"\r\x1b[K{first}\r\r\x1b[K{second}\r\r\x1b[K", ""
    while len(seen) < len(wanted):
        seen += os.read(ours, 4096).decode()
    os.close(ours)
    os.close(theirs)
    assert seen == wanted


def test_a_terminal_that_is_full_or_gone_holds_up_nothing() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, bytes(65536))
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    report = LoadReport(terminal=True, descriptor=writer)
    report("a line")
    report.end()
    os.close(reader)
    report("a line")
    report.end()
    os.close(writer)
    report("a line")


def test_the_log_has_a_line_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.engine")
    clock = Clock()
    report = LoadReport(terminal=False, clock=clock)
    for number in range(1, 13):
        clock.now += 1
        report(f"line {number}")
    report.end()
    assert caplog.messages == ["loading weights: line 5", "loading weights: line 10"]
