"""Loads from a disk tier straight to the pools, by kvikio in POSIX compatibility mode."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from penstock.core import PenstockError
from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import Fault, Transfer, TransferKind
from tests.backends.torch.kv import test_staging, test_tiers
from tests.backends.torch.kv.held_copies import LateCopies
from tests.backends.torch.kv.test_staging import CHUNKS, LOAD, STORE, moving
from tests.backends.torch.kv.test_tiers import FAMILIES, assert_same, audit
from tests.e2e.server import eventually
from tests.e2e.test_kv_tiers import PROMPTS, Open, answers, cached, forget, stats
from tests.executor.worker.test_kv_mover import disk
from tests.kv.gds import conftest
from tests.limits import HANG

kvikio_works = conftest.kvikio_works
opened, place, late = test_tiers.opened, test_tiers.place, test_staging.late
pytestmark = pytest.mark.usefixtures("kvikio_works")


def test_a_direct_load_needs_no_copy(tmp_path: Path) -> None:
    with moving(disk(tmp_path), direct=[1]) as m:
        assert m.move(STORE, 1, [3, 9], name=1).done
        m.forget()
        m.copies.hold("device", "host")
        moved = m.move(LOAD, 1, [9, 4], name=1)
        assert moved.done
        assert moved.bytes == 2 * sum(pool.layout.block_bytes for pool in m.pools)
        assert [m.values(group, 9) for group in range(2)] == [{3.0}, {103.0}]
        assert [m.values(group, 4) for group in range(2)] == [{9.0}, {109.0}]
        assert bool(m.pools[0].blocks[:4].isnan().all())


def test_a_direct_load_leaves_out_what_no_token_sees(tmp_path: Path) -> None:
    with moving(disk(tmp_path), direct=[1]) as m:
        assert m.move(STORE, 1, [3, 9], name=1).done
        m.forget()
        assert m.move(LOAD, 1, [30, 31], name=1, others=[NO_BLOCK, 31]).done
        assert [m.values(0, block) for block in (30, 31)] == [{3.0}, {9.0}]
        assert m.values(1, 31) == {109.0}
        assert bool(m.pools[1].blocks[:31].isnan().all())


def test_missing_and_damaged_chunks_are_misses(tmp_path: Path) -> None:
    with moving(disk(tmp_path), direct=[1]) as m:
        assert m.move(STORE, 1, [3, 9], name=1).done
        (file, *_) = sorted(tmp_path.rglob("*.h1.l0-2"))
        content = bytearray(file.read_bytes())
        content[4096 + 5] ^= 1
        file.write_bytes(content)
        missing, damaged = m.move(LOAD, 1, [4, 5], name=2), m.move(LOAD, 1, [4, 5], name=1)
        assert (missing.done, missing.error, missing.fault) == (False, "", Fault.NONE)
        assert (damaged.done, damaged.fault) == (False, Fault.DAMAGED)
        assert "payload's checksum is wrong" in damaged.error


def test_other_tiers_are_staged(tmp_path: Path) -> None:
    with moving(disk(tmp_path / "one"), disk(tmp_path / "two"), direct=[2]) as m:
        for tier in (1, 2):
            assert m.move(STORE, tier, [3, 9], name=1).done
        m.copies.hold("device")
        m.submit(LOAD, 1, [4, 5], name=1)
        assert m.move(LOAD, 2, [6, 7], name=1).done
        m.copies.let_go("device")
        assert m.take(1)[0].done
        assert [m.values(0, block) for block in (4, 5, 6, 7)] == [{3.0}, {9.0}] * 2


def test_a_stop_answers_what_has_not_begun(tmp_path: Path) -> None:
    with moving(disk(tmp_path), direct=[1]) as m:
        for name in range(1, CHUNKS + 1):
            assert m.move(STORE, 1, [3, 9], name=name).done
        ids = [m.submit(LOAD, 1, [4, 5], name=name) for name in range(1, CHUNKS + 1)]
        m.mover.submit(Transfer(0, TransferKind.CANCEL, ids=array("q", ids)))
        m.mover.close(1.0)
        assert {moved.id for moved in m.mover.take()} == set(ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_hits_change_nothing(
    opened: Open,
    place: str,
    late: list[LateCopies],
    family: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A busy machine takes longer than the 0.2 s after which a load counts as stalled.
    monkeypatch.setattr("penstock.kv.tiers.load.LEAST_STALL", HANG)
    expected = answers(opened(family=family), PROMPTS)
    llm = opened("ram:128KiB", f"{place},gds=true", family=family)
    for _ in range(3):
        assert_same(answers(llm, PROMPTS), expected)
        audit(llm)
        forget(llm)
    llm.close()
    again = opened(f"{place},gds=true", family=family)
    eventually(lambda: (forget(again), cached(again, PROMPTS[:1]))[1] == [96], "a hit")
    assert_same(answers(again, PROMPTS), expected)
    assert stats(again, 0).hit_tokens > 0
    assert not stats(again, 0).errors
    assert [each.wrong for each in late] == [[], []]


@pytest.mark.parametrize("device", ["torch", "cpu"])
def test_memory_of_the_host_is_refused(opened: Open, place: str, device: str) -> None:
    with pytest.raises(PenstockError, match=r"gds=true is for the memory of GPUs"):
        opened(f"{place},gds=true", device=device)
