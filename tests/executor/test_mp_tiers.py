"""Transfers of ranks in processes: one request, one joined answer, no wait in steps."""

from __future__ import annotations

import json
import os
import signal
import time
from array import array

import pytest

from penstock.core import PenstockError
from penstock.core.transfer import RAM, OpenTiers, Transfer, TransferKind, TransferResult
from penstock.executor import WorkersLostError
from penstock.executor.rank_group import RanksExecutor
from tests.executor.test_mp import Start, plan
from tests.executor.test_mp import start as start
from tests.limits import HANG

pytestmark = pytest.mark.heavy

KEY, OTHER = bytes([1] * 32), bytes([2] * 32)
BLOCK = array("i", [0])


def await_moved(executor: RanksExecutor, count: int) -> list[TransferResult]:
    moved: list[TransferResult] = []
    deadline = time.monotonic() + HANG
    while len(moved) < count:
        assert time.monotonic() < deadline, f"answered: {moved}"
        moved += executor.transfers.moved()
        time.sleep(0.001)
    return moved


def opened(start: Start, tp: int, pp: int, **faults: dict[str, object]) -> RanksExecutor:
    executor = start(tp, pp, **faults)
    executor.transfers.open_tiers(OpenTiers("c0ffee", 4, 0.2))
    return executor


def fill_block(executor: RanksExecutor, last: int = 16) -> None:
    for step in range(1, last + 1):
        executor.submit(plan(step, step)).result(HANG)


def chunk(number: int, kind: TransferKind, key: bytes = KEY, block: int = 0) -> Transfer:
    return Transfer(number, kind, 1, array("i", [block]), keys=key)


def compute_elsewhere(executor: RanksExecutor, step: int) -> None:
    """A step in block 1."""
    other = plan(step, 1)
    other.starts, other.added = array("i", [0]), array("i", [1])
    executor.submit(other).result(HANG)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_transfers_go_to_all_ranks_and_are_answered_by_all(start: Start, tp: int, pp: int) -> None:
    executor = opened(start, tp, pp)
    assert [json.loads(report)["rank"] for report in executor.transfers.mover_reports()] == list(
        range(tp * pp)
    )
    fill_block(executor)
    executor.transfers.transfer(chunk(1, TransferKind.STORE))
    executor.transfers.transfer(Transfer(2, TransferKind.STORE, RAM, BLOCK, array("i", [3])))
    stored = await_moved(executor, 2)
    size, ranks = 4 * 16, tp * pp
    assert [(moved.id, moved.done, moved.error) for moved in stored] == [
        (1, True, ""),
        (2, True, ""),
    ]
    assert {moved.bytes for moved in stored} == {ranks * size + sum(range(ranks))}
    counts = array("i", [1, 1])
    executor.transfers.transfer(Transfer(3, TransferKind.PROBE, 1, keys=KEY + OTHER, counts=counts))
    executor.transfers.transfer(chunk(4, TransferKind.LOAD))
    executor.transfers.transfer(chunk(5, TransferKind.LOAD, OTHER))
    probed, loaded, missing = await_moved(executor, 3)
    assert probed.found == b"\1\0"
    assert (loaded.done, missing.done) == (True, False)


def test_many_transfers_pass_and_steps_between_them(start: Start) -> None:
    executor = opened(start, 2, 2)
    fill_block(executor)
    moved: list[TransferResult] = []
    for number in range(1, 201):
        slots = array("i", [number % 4])
        executor.transfers.transfer(Transfer(number, TransferKind.STORE, RAM, BLOCK, slots))
        if number % 10 == 0:
            compute_elsewhere(executor, 16 + number // 10)
    moved = await_moved(executor, 200)
    assert sorted(each.id for each in moved) == list(range(1, 201))
    assert all(each.done for each in moved)


def test_nobody_waits_for_a_tier_that_stalls(start: Start) -> None:
    executor = opened(start, 2, 1, rank1={"tiers": "stall"})
    executor.transfers.transfer(chunk(1, TransferKind.LOAD))
    compute_elsewhere(executor, 1)
    executor.transfers.transfer(Transfer(2, TransferKind.REMOVE, keys=KEY))
    (removed,) = await_moved(executor, 1)
    assert removed.id == 2
    began = time.monotonic()
    executor.close()
    assert time.monotonic() - began >= 0.2


def test_what_stalls_cannot_be_cancelled_and_holds_up_nobody(start: Start) -> None:
    executor = opened(start, 2, 1, rank0={"tiers": "stall"}, rank1={"tiers": "stall"})
    executor.transfers.transfer(chunk(1, TransferKind.LOAD))
    executor.transfers.transfer(Transfer(0, TransferKind.CANCEL, ids=array("q", [1])))
    executor.transfers.transfer(Transfer(2, TransferKind.REMOVE, keys=KEY))
    assert [moved.id for moved in await_moved(executor, 1)] == [2]


def test_tiers_are_closed_before_the_ranks_end(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    opened(start, 2, 1).close()
    said = capfd.readouterr().err
    assert "rank 0 closed its tiers" in said
    assert "rank 1 closed its tiers" in said


def test_a_rank_that_cannot_open_a_tier_says_why(start: Start) -> None:
    with pytest.raises(PenstockError, match="rank 1 failed: disk:/kv is not writable"):
        opened(start, 2, 1, rank1={"tiers": "refuse"})


def test_a_mover_that_raises_is_the_end_of_all_ranks(start: Start) -> None:
    executor = opened(start, 2, 1, rank1={"tiers": "raise"})
    executor.transfers.transfer(chunk(1, TransferKind.LOAD))
    with pytest.raises(WorkersLostError, match="rank 1 failed: RuntimeError: the fake mover"):
        await_moved(executor, 1)
    with pytest.raises(WorkersLostError):
        executor.transfers.transfer(chunk(2, TransferKind.LOAD))


def test_transfers_end_with_a_rank_that_is_killed(start: Start) -> None:
    executor = opened(start, 2, 1, rank0={"tiers": "stall"})
    executor.transfers.transfer(chunk(1, TransferKind.LOAD))
    os.kill(executor.pids[0], signal.SIGKILL)
    with pytest.raises(WorkersLostError, match=r"rank 0 .*SIGKILL"):
        await_moved(executor, 1)


def test_reports_follow_what_was_asked(start: Start) -> None:
    executor = opened(start, 2, 1)
    executor.transfers.transfer(Transfer(1, TransferKind.REMOVE, keys=KEY))
    await_moved(executor, 1)
    deadline = time.monotonic() + HANG
    while [json.loads(report)["asked"] for report in executor.transfers.mover_reports()] != [1, 1]:
        assert time.monotonic() < deadline, executor.transfers.mover_reports()
        executor.transfers.moved()
        time.sleep(0.01)
