"""Progress of loading: which lines, and when."""

import threading

from penstock.core.progress import LoadProgress
from tests.limits import HANG

GIB, MIB = 2**30, 2**20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_a_second_and_one_at_the_end() -> None:
    clock, lines = Clock(), list[str]()
    progress = LoadProgress(15 * GIB, lines.append, clock)
    for _ in range(30):
        clock.now += 0.5
        progress.add(GIB // 2)
    assert lines[0] == "1.00 of 15.00 GiB (6%), 1.00 GiB/s, 14.0 s left"
    assert lines[7] == "8.00 of 15.00 GiB (53%), 1.00 GiB/s, 7.0 s left"
    assert lines[-1] == "15.00 GiB in 15.0 s, 1.00 GiB/s"
    assert len(lines) == 15
    clock.now += 10
    progress.add(MIB)
    assert len(lines) == 15, "nothing behind the end"


def test_nothing_about_short_loads() -> None:
    clock, lines = Clock(), list[str]()
    progress = LoadProgress(10 * MIB, lines.append, clock)
    for _ in range(10):
        clock.now += 0.099
        progress.add(MIB)
    empty = LoadProgress(0, lines.append, clock)
    clock.now += 5
    empty.add(0)
    assert not lines


def test_a_load_ends_within_a_second_of_a_line() -> None:
    clock, lines = Clock(), list[str]()
    progress = LoadProgress(3 * MIB, lines.append, clock)
    clock.now += 1.25
    progress.add(2 * MIB)
    clock.now += 0.75
    progress.add(MIB)
    assert lines == ["2 of 3 MiB (66%), 2 MiB/s, 0.6 s left", "3 MiB in 2.0 s, 2 MiB/s"]


def test_the_rate_is_that_of_the_last_lines() -> None:
    clock, lines = Clock(), list[str]()
    progress = LoadProgress(400 * GIB, lines.append, clock)
    for count in [20] + [1] * 9 + [0] * 5:
        clock.now += 1
        progress.add(count * GIB)
    assert lines[0].endswith("20.00 GiB/s, 19.0 s left")
    assert lines[9] == "29.00 of 400.00 GiB (7%), 1.00 GiB/s, 6 min 11 s left"
    assert lines[14] == "29.00 of 400.00 GiB (7%), 0 MiB/s"


def test_threads_lose_no_bytes_and_do_not_wait_for_a_report() -> None:
    clock, lines = Clock(), list[str]()
    go_on, reporting = threading.Event(), threading.Event()

    def report(line: str) -> None:
        reporting.set()
        assert go_on.wait(HANG)
        lines.append(line)

    progress = LoadProgress(80 * MIB, report, clock)
    clock.now += 1
    slow = threading.Thread(target=progress.add, args=(MIB,))
    slow.start()
    assert reporting.wait(HANG)
    clock.now += 1
    progress.add(MIB)  # Another line is due, and one is being reported.
    go_on.set()
    slow.join()

    def add() -> None:
        for _ in range(6 * 16):
            progress.add(MIB // 16)

    threads = [threading.Thread(target=add) for _ in range(13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 2
    assert lines == ["1 of 80 MiB (1%), 1 MiB/s, 1 min 19 s left", "80 MiB in 2.0 s, 40 MiB/s"]
