"""Transfers of ranks on several nodes: over the streams that carry their plans."""

from __future__ import annotations

import json
import time
from array import array

import pytest

from penstock.core import PenstockError
from penstock.core.transfer import OpenTiers, Transfer, TransferKind, TransferResult
from tests.executor.test_nodes import Launches, compute
from tests.executor.test_nodes import launch as launch
from tests.limits import HANG

pytestmark = pytest.mark.heavy

KEY = bytes(32)


def test_transfers_go_to_all_ranks_and_are_answered_by_all(
    launch: Launches, capfd: pytest.CaptureFixture[str]
) -> None:
    executor = launch(2, 2).start(2)
    executor.transfers.open_tiers(OpenTiers("c0ffee", 4, 1.0))
    assert [json.loads(report)["rank"] for report in executor.transfers.mover_reports()] == [
        0,
        1,
        2,
        3,
    ]
    compute(executor, 16)
    executor.transfers.transfer(Transfer(1, TransferKind.STORE, 1, array("i", [0]), keys=KEY))
    executor.transfers.transfer(
        Transfer(2, TransferKind.PROBE, 1, keys=KEY, counts=array("i", [1]))
    )
    moved: list[TransferResult] = []
    deadline = time.monotonic() + HANG
    while len(moved) < 2:
        assert time.monotonic() < deadline, moved
        moved += executor.transfers.moved()
        time.sleep(0.001)
    assert [(each.id, each.done, each.found) for each in moved] == [
        (1, True, b""),
        (2, True, b"\1"),
    ]
    executor.close()
    said = capfd.readouterr().err
    assert all(f"rank {rank} closed its tiers" in said for rank in range(4))


def test_a_rank_elsewhere_that_cannot_open_a_tier_says_why(launch: Launches) -> None:
    executor = launch(2, 2).start(1, rank1={"tiers": "refuse"})
    with pytest.raises(PenstockError, match="rank 1 failed: disk:/kv is not writable"):
        executor.transfers.open_tiers(OpenTiers("c0ffee", 4, 1.0))
