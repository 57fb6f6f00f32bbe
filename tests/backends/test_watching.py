"""Progress of a load that only counts."""

import threading
import time

import pytest

from penstock.backends import watching
from penstock.backends.watching import watched
from tests.limits import HANG


class Count:
    total = 0
    read = 0


def test_what_is_counted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK", 0.01)
    monkeypatch.setattr("penstock.core.progress.INTERVAL", 0.02)
    count, lines = Count(), list[str]()
    with watched(count, lines.append):
        count.total = 300 << 20
        deadline = time.monotonic() + HANG
        while not lines and time.monotonic() < deadline:
            time.sleep(0.01)
            count.read = min(count.read + (1 << 20), 299 << 20)
        count.read = count.total
    assert " of 300 MiB (" in lines[0]
    assert lines[-1].startswith("300 MiB in ")


def test_a_load_that_fails_ends_the_watch() -> None:
    lines = list[str]()
    with pytest.raises(ValueError, match="damaged"), watched(Count(), lines.append):
        raise ValueError("damaged")
    assert not lines


def test_a_listener_that_is_gone_is_no_fault_of_the_load(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """pytest warns of errors that end a thread."""
    monkeypatch.setattr(watching, "LOOK", 0.01)
    monkeypatch.setattr("penstock.core.progress.INTERVAL", 0.0)
    count, told = Count(), threading.Event()

    def gone(_line: str) -> None:
        told.set()
        raise ConnectionError("the executor has ended")

    with watched(count, gone):
        count.total = 300 << 20
        assert told.wait(HANG)
    assert [str(each.message) for each in recwarn] == []
