"""Processes of ranks: which exit is reported."""

from __future__ import annotations

import os
import queue
import sys
from pathlib import Path

import pytest

from penstock.executor import processes
from penstock.executor.processes import Processes, RankExit
from tests.limits import HANG

RANK = """
import os, signal, sys, time
sys.stdin.readline()
rank = int(sys.argv[sys.argv.index("--rank") + 1])
exits = {0: "time.sleep(0.05); os.kill(os.getpid(), signal.SIGKILL)", 1: "sys.exit(1)"}
exec(exits.get(rank, "time.sleep(60)"))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that end as their number says."""
    (tmp_path / "rank_that_ends.py").write_text(RANK)
    monkeypatch.setattr(processes, "WORKER", "rank_that_ends")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))


def reported(first: int, ranks: int) -> RankExit:
    exits: queue.Queue[RankExit] = queue.Queue()
    made = Processes(["{}"] * ranks, [], exits.put, first)
    try:
        return exits.get(timeout=HANG)
    finally:
        made.end(0.0)


@pytest.mark.usefixtures("module")
def test_a_killed_rank_is_reported_rather_than_one_that_ended_because_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "SETTLE", HANG)
    found = reported(first=0, ranks=3)
    assert (found.rank, found.killed) == (0, True)
    assert "was killed by signal 9 (SIGKILL)" in found.reason


@pytest.mark.usefixtures("module")
def test_a_rank_that_ends_by_itself_is_reported_while_others_run() -> None:
    found = reported(first=1, ranks=3)
    assert (found.rank, found.killed) == (1, False)
    assert "exited with status 1" in found.reason
