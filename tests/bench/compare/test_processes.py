"""Process trees and what is known about their CPU time."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_lab.bench.compare.processes import Meter, ProcessTree, uninterrupted
from tests.limits import HANG

if not sys.platform.startswith("linux"):
    pytest.skip("process trees are read from /proc", allow_module_level=True)

FAMILY = ["sh", "-c", "sleep 60 & sh -c 'sleep 60' & wait"]
ENDED = {"Z", "X", ""}
CPUS = os.sched_getaffinity(0)


def state(pid: int) -> str:
    """One letter, as in ps; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for(tree: ProcessTree, members: int) -> list[int]:
    """The pids once there are that many."""
    deadline = time.monotonic() + HANG
    while len(tree.pids()) < members:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return tree.pids()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[ProcessTree]:
    """A shell with two children."""
    tree = ProcessTree(FAMILY, {}, tmp_path / "log", CPUS)
    yield tree
    tree.end(patience=0)


def test_a_tree_is_stopped_resumed_and_ended_as_a_whole(family: ProcessTree) -> None:
    pids = wait_for(family, 3)
    family.stop()
    # A process that waits for a disk stops when that has answered.
    deadline = time.monotonic() + HANG
    while {state(pid) for pid in pids} != {"T"}:
        assert time.monotonic() < deadline
    family.resume()
    deadline = time.monotonic() + HANG
    while "T" in {state(pid) for pid in pids}:
        assert time.monotonic() < deadline
    family.end(patience=HANG)
    assert {state(pid) for pid in pids} <= ENDED
    assert not family.alive()


def test_a_stopped_tree_can_be_ended(family: ProcessTree) -> None:
    pids = wait_for(family, 3)
    family.stop()
    family.end(patience=HANG)
    assert {state(pid) for pid in pids} <= ENDED
    assert family.root.returncode == -signal.SIGTERM


def test_a_child_that_lost_its_parent_is_still_found(tmp_path: Path) -> None:
    tree = ProcessTree(["sh", "-c", "sh -c 'sleep 60 &'; sleep 60"], {}, tmp_path / "log", CPUS)
    try:
        orphans = [pid for pid in wait_for(tree, 3) if pid != tree.root.pid]
    finally:
        tree.end(patience=HANG)
    assert {state(pid) for pid in orphans} <= ENDED


def test_what_outlives_its_command_is_ended_too(tmp_path: Path) -> None:
    tree = ProcessTree(["sh", "-c", "trap '' TERM; sleep 60 & exit 3"], {}, tmp_path / "log", CPUS)
    deadline = time.monotonic() + HANG
    while tree.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (child,) = tree.pids()
    tree.end(patience=0.5)
    assert state(child) in ENDED
    assert tree.root.returncode == 3


def test_environment_and_cpus_are_those_of_the_command_only(tmp_path: Path) -> None:
    cpu = min(CPUS)
    script = "import os; print(os.getpid(), os.environ['COLOUR'], *os.sched_getaffinity(0))"
    tree = ProcessTree(
        [sys.executable, "-c", script], {"COLOUR": "deep blue"}, tmp_path / "log", {cpu}
    )
    tree.root.wait(HANG)
    assert tree.log.read_text().split() == [str(tree.root.pid), "deep", "blue", str(cpu)]
    assert os.sched_getaffinity(0) == CPUS
    assert "COLOUR" not in os.environ


def test_the_meter_charges_the_tree_for_its_work(tmp_path: Path) -> None:
    tree = ProcessTree([sys.executable, "-c", "while True: pass"], {}, tmp_path / "log", CPUS)
    try:
        deadline = time.monotonic() + HANG
        meter = Meter(tree)
        while meter.read()["server_cpu_s"] < 0.1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        shares = meter.read()
    finally:
        tree.end(patience=5)
    assert 0 <= shares["foreign_share"] <= 1


def protected(steps: list[str]) -> None:
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        steps.append("finished")


def test_a_signal_waits_for_the_end_of_a_protected_block() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        protected(steps)
    assert steps == ["finished"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
