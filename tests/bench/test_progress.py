"""What is shown while a load runs."""

from __future__ import annotations

import io

import pytest

from penstock_lab.bench.progress import Bar, Lines, Silent, progress


def counts(completed: int, events: int, failed: int = 0, open_: int = 0) -> dict[str, int]:
    return {
        "added": 100,
        "sent": completed + failed + open_,
        "open": open_,
        "completed": completed,
        "failed": failed,
        "events": events,
        "bytes": 0,
    }


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    shown = Lines(stream, clock)
    shown.begin("requests", 100)
    for second in range(1, 26):
        clock.now = 100.0 + second
        shown.show(counts(second * 2, second * 50, open_=3))
    shown.end(counts(60, 1500, failed=1))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].split("  ") == ["requests 20/100", "0:10", "2.0 req/s", "50 tok/s", "3 open"]
    assert lines[2].startswith("requests 61/100  0:25")
    assert lines[2].endswith("1 failed")


def test_rates_are_those_of_the_last_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    shown = Lines(stream, clock)
    shown.begin("requests", 1000)
    for second in range(1, 21):
        clock.now = 100.0 + second
        shown.show(counts(10 * second if second <= 10 else 100 + second - 10, 0))
    assert stream.getvalue().splitlines()[1].split("  ")[2] == "1.0 req/s"


def test_a_bar_is_drawn_in_place_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (20, 60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        stream, clock = Terminal(), Clock()
        shown = Bar(stream, clock)
        shown.begin("requests", 100)
        clock.now += 1
        shown.show(counts(50, 100, open_=4))
        shown.end(counts(100, 200))
        drawn = stream.getvalue()
        assert drawn.count("\n") == 1
        frames = [frame.removeprefix("\x1b[K").rstrip("\n") for frame in drawn.split("\r")[1:]]
        assert len(frames) == 2
        assert all(len(frame) < columns for frame in frames)
    assert frames[0].count("=") * 2 == pytest.approx(frames[1].count("="), abs=2)


def test_the_kind_fits_the_stream() -> None:
    assert isinstance(progress(False, Terminal()), Bar)
    assert isinstance(progress(False, io.StringIO()), Lines)
    assert isinstance(progress(True, Terminal()), Silent)
