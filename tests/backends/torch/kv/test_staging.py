"""Tiers of a GPU, with streams that copy as late as they may: nothing is used before its copy."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.backends.torch.kv.mover import StagedMover
from penstock.backends.torch.kv.pool import Layout, make_pools
from penstock.backends.torch.kv.staging import CHUNKS, STORES
from penstock.backends.torch.kv.tiers import open_tiers
from penstock.backends.torch.step.device import Cpu
from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import RAM, Fault, Transfer, TransferKind, TransferResult
from tests.backends.torch.kv import test_tiers
from tests.backends.torch.kv.held_copies import HeldCopies, LateCopies
from tests.backends.torch.kv.test_tiers import FAMILIES, assert_hits_change_nothing
from tests.e2e.server import eventually
from tests.e2e.test_kv_tiers import Open
from tests.engine import test_traffic as traffic
from tests.executor.worker.test_kv_mover import disk, silent_redis
from tests.limits import HANG
from tests.real_ranks import engine

BLOCK = 16
PER_CHUNK = 2
BLOCKS = 64
opened, place = test_tiers.opened, test_tiers.place
LOAD, STORE = TransferKind.LOAD, TransferKind.STORE


class Moving:
    """A mover over two KV groups of a few layers, and its pools."""

    def __init__(
        self,
        copies: HeldCopies,
        *tiers: dict[str, object],
        direct: Sequence[int] = (),
        layers: tuple[int, int] = (2, 1),
    ) -> None:
        layouts = [Layout(count, 2, 4, False, BLOCK, torch.float32) for count in layers]
        self.pools = make_pools(layouts, [BLOCKS, BLOCKS], torch.device("cpu"))
        self.copies = copies
        self.refill()
        settings: dict[str, Any] = {
            "ram_slots": 8,
            "tiers": list(tiers),
            "chunk_tokens": PER_CHUNK * BLOCK,
            "heads": [0, 1],
            "layers": [[0, layers[0]], [layers[0], sum(layers)]],
            "identity": {
                "cache": "ab" * 32,
                "layers": 3,
                "kv_heads": 2,
                "block_tokens": BLOCK,
                "tile_bytes": 2 * BLOCK * 4 * 4,
                "dtype": "f32-rows",
            },
        }
        mover = open_tiers(settings, self.pools, copies, direct)
        assert isinstance(mover, StagedMover)
        self.mover = mover
        self._id = 0

    def refill(self) -> None:
        """Each block has values of its own."""
        for group, pool in enumerate(self.pools):
            for block in range(BLOCKS):
                pool.blocks[block] = 100 * group + block

    def forget(self) -> None:
        for pool in self.pools:
            pool.blocks.fill_(torch.nan)

    def submit(
        self,
        kind: TransferKind,
        tier: int,
        blocks: list[int],
        *,
        name: int = 0,
        slots: list[int] | None = None,
        others: list[int] | None = None,
    ) -> int:
        """`others`: the blocks of the second group, if not the same."""
        self._id += 1
        both = array("i", [*blocks, *(others or blocks)])
        ram = array("i", slots or [])
        self.mover.submit(Transfer(self._id, kind, tier, both, ram, bytes([name]) * 32))
        return self._id

    def probe(self, tier: int, *names: int) -> bytes:
        self._id += 1
        keys = b"".join(bytes([name]) * 32 for name in names)
        counts = array("i", [PER_CHUNK] * len(names))
        self.mover.submit(Transfer(self._id, TransferKind.PROBE, tier, keys=keys, counts=counts))
        (moved,) = self.take(1)
        return moved.found

    def take(self, count: int) -> list[TransferResult]:
        """So many answers."""
        found: list[TransferResult] = []
        while len(found) < count:
            more = self.mover.take(HANG)
            assert more, "no answer"
            found += more
        assert len(found) == count
        return found

    def move(self, *arguments: Any, **more: Any) -> TransferResult:
        self.submit(*arguments, **more)
        (moved,) = self.take(1)
        return moved

    def values(self, group: int, block: int) -> set[float]:
        return set(self.pools[group].blocks[block].unique().tolist())


@contextmanager
def moving(
    *tiers: dict[str, object], direct: Sequence[int] = (), layers: tuple[int, int] = (2, 1)
) -> Iterator[Moving]:
    made = Moving(HeldCopies(), *tiers, direct=direct, layers=layers)
    try:
        yield made
    finally:
        made.copies.let_go("host", "device")
        made.mover.close(HANG)
    assert made.copies.wrong == []
    assert made.copies.pinned == []


def test_a_store_is_seen_when_its_copy_is_done(tmp_path: Path) -> None:
    with moving(disk(tmp_path)) as m:
        m.copies.hold("host")
        m.submit(STORE, 1, [3, 9], name=1)
        assert m.probe(1, 1) == b"\0"
        # The block may be written until the copy reads it: nothing was taken before.
        m.pools[0].blocks[3] = 1234.0
        m.copies.let_go("host")
        (moved,) = m.take(1)
        assert moved.done
        assert moved.bytes == 2 * sum(pool.layout.block_bytes for pool in m.pools)
        assert moved.seconds > 0.001
        assert m.probe(1, 1, 2) == b"\1\0"
        assert m.move(LOAD, 1, [20, 21], name=1).done
        assert [m.values(0, block) for block in (20, 21)] == [{1234.0}, {9.0}]
        assert [m.values(1, block) for block in (20, 21)] == [{103.0}, {109.0}]


@pytest.mark.parametrize("tier", [RAM, 1])
def test_a_load_is_answered_when_its_copy_is_done(tmp_path: Path, tier: int) -> None:
    with moving(disk(tmp_path)) as m:
        slots = [5, 2] if tier == RAM else None
        assert m.move(STORE, tier, [3, 9], name=1, slots=slots).done
        m.forget()
        m.copies.hold("device")
        m.submit(LOAD, tier, [9, 4], name=1, slots=slots)
        eventually(lambda: m.copies.begun("device"), "a copy")
        assert m.mover.take(0.2) == []
        assert bool(m.pools[0].blocks.isnan().all())
        m.copies.let_go("device")
        (moved,) = m.take(1)
        assert moved.done
        assert [m.values(group, 9) for group in range(2)] == [{3.0}, {103.0}]
        assert [m.values(group, 4) for group in range(2)] == [{9.0}, {109.0}]


def test_staging_is_not_used_again_before_its_copies_are_done(tmp_path: Path) -> None:
    """Many more chunks than there is staging for, in both directions, one copy at a time."""
    names = range(1, 25)
    with moving(disk(tmp_path)) as m:
        m.copies.hold("host", "device")
        for name in names:
            m.submit(STORE, 1, [2 * name, 2 * name + 1], name=name)
        for done in range(len(names)):
            assert len(m.copies.begun("host")) <= 1
            m.copies.let_one_go("host")
            assert len(m.take(1)) == 1, done
        m.forget()
        for name in names:
            m.submit(LOAD, 1, [2 * name + 1, 2 * name], name=name)
        for _ in names:
            m.copies.let_one_go("device")
            m.take(1)
        for name in names:
            found = [m.values(group, 2 * name + at) for group in range(2) for at in range(2)]
            low, high = 2.0 * name, 2.0 * name + 1
            assert found == [{high}, {low}, {high + 100}, {low + 100}]


def test_loads_pass_stores_that_wait(tmp_path: Path) -> None:
    with moving(disk(tmp_path)) as m:
        assert m.move(STORE, 1, [3, 9], name=99).done
        m.copies.hold("host")
        for name in range(1, CHUNKS + 3):
            m.submit(STORE, 1, [2 * name, 2 * name + 1], name=name)
        assert CHUNKS > STORES
        for _ in range(3):
            assert m.move(LOAD, 1, [50, 51], name=99).done
        m.copies.let_go("host")
        assert all(moved.done for moved in m.take(CHUNKS + 2))


def test_a_slot_of_ram_is_read_and_written_in_the_order_of_the_transfers() -> None:
    with moving() as m:
        m.copies.hold("host")
        m.submit(STORE, RAM, [3, 9], slots=[0, 1])
        m.submit(LOAD, RAM, [20, 21], slots=[1, 1])
        eventually(lambda: m.copies.begun("host"), "a copy")
        assert m.mover.take(0.2) == []
        assert not m.copies.begun("device"), "a load waits for the store to its slot"
        m.copies.hold("device")
        m.copies.let_go("host")
        assert [moved.id for moved in m.take(1)] == [1]
        m.submit(STORE, RAM, [7], slots=[1])
        assert m.mover.take(0.2) == []
        assert not m.copies.begun("host"), "a store waits for the load from its slot"
        m.copies.let_go("device")
        assert [moved.id for moved in m.take(2)] == [2, 3]
        assert m.values(0, 20) == m.values(0, 21) == {9.0}
        assert m.move(LOAD, RAM, [30], slots=[1]).done
        assert m.values(1, 30) == {107.0}


@pytest.mark.parametrize("tier", [RAM, 1])
def test_a_load_leaves_out_what_no_token_sees(tmp_path: Path, tier: int) -> None:
    with moving(disk(tmp_path)) as m:
        slots = [5, 2] if tier == RAM else None
        assert m.move(STORE, tier, [3, 9], name=1, slots=slots).done
        m.forget()
        some = [NO_BLOCK, 31]
        assert m.move(LOAD, tier, [30, 31], name=1, slots=slots, others=some).done
        assert [m.values(0, block) for block in (30, 31)] == [{3.0}, {9.0}]
        assert m.values(1, 31) == {109.0}
        assert bool(m.pools[1].blocks[:31].isnan().all())


@pytest.mark.parametrize("tier", [RAM, 1])
def test_a_rank_without_layers_of_a_group_moves_those_of_the_others(
    tmp_path: Path, tier: int
) -> None:
    with moving(disk(tmp_path), layers=(0, 2)) as m:
        slots = [5, 2] if tier == RAM else None
        assert m.move(STORE, tier, [3, 9], name=1, slots=slots).done
        m.forget()
        moved = m.move(LOAD, tier, [9, 4], name=1, slots=slots)
        assert (moved.done, moved.bytes) == (True, 2 * m.pools[1].layout.block_bytes)
        assert [m.values(1, block) for block in (9, 4)] == [{103.0}, {109.0}]


def test_what_has_not_begun_can_be_cancelled(tmp_path: Path) -> None:
    with moving(disk(tmp_path)) as m:
        m.copies.hold("host")
        ids = [m.submit(STORE, 1, [2, 3], name=name) for name in range(1, STORES + 4)]
        m.mover.submit(Transfer(0, TransferKind.CANCEL, ids=array("q", ids[STORES:])))
        dropped = m.take(3)
        assert [moved.id for moved in dropped] == ids[STORES:]
        assert not any(moved.done or moved.error for moved in dropped)
        m.copies.let_go("host")
        assert all(moved.done for moved in m.take(STORES))
        assert m.probe(1, *range(1, STORES + 4)) == b"\1" * STORES + b"\0\0\0"


def test_a_removal_stays_behind_the_stores_before_it(tmp_path: Path) -> None:
    with moving(disk(tmp_path)) as m:
        m.copies.hold("host")
        m.submit(STORE, 1, [2, 3], name=1)
        m.mover.submit(Transfer(7, TransferKind.REMOVE, keys=bytes([1]) * 32))
        assert m.mover.take(0.2) == []
        m.copies.let_go("host")
        assert sorted((moved.id, moved.done) for moved in m.take(2)) == [(1, True), (7, True)]
        assert m.probe(1, 1) == b"\0"


def test_missing_and_damaged_chunks_touch_no_block(tmp_path: Path) -> None:
    with moving(disk(tmp_path)) as m:
        assert m.move(STORE, 1, [3, 9], name=1).done
        (file, *_) = sorted(tmp_path.rglob("*.h1.l0-2"))
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        content[4096] ^= 1
        file.write_bytes(content)
        m.forget()
        missing, damaged = m.move(LOAD, 1, [4, 5], name=2), m.move(LOAD, 1, [4, 5], name=1)
        assert (missing.done, missing.fault) == (False, Fault.NONE)
        assert (damaged.done, damaged.fault) == (False, Fault.DAMAGED)
        assert bool(m.pools[0].blocks.isnan().all())


def test_transfers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with moving(disk(tmp_path)) as m:
        for tier, blocks in ((2, [1, 2]), (1, []), (1, list(range(PER_CHUNK + 1)))):
            moved = m.move(LOAD, tier, blocks, name=1)
            assert (moved.done, moved.fault) == (False, Fault.FAILED)
            assert f"tier {tier}" in moved.error
        odd = Transfer(50, STORE, 1, array("i", [1, 2, 3]), keys=bytes(32))
        m.mover.submit(odd)
        assert "3 blocks of 2 KV groups" in m.take(1)[0].error


def test_a_tier_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    with silent_redis() as (url, speak):
        with moving(disk(tmp_path), {"kind": "redis", "url": url}) as m:
            for name in range(1, CHUNKS + 3):
                m.submit(LOAD, 2, [40, 41], name=name)
            for name in range(1, CHUNKS + 3):
                assert m.move(STORE, 1, [3, 9], name=name).done
                assert m.move(LOAD, 1, [4, 5], name=name).done
            m.mover.close(0.5)
            left = m.mover.take(HANG)
            assert len(left) == CHUNKS + 2
            assert not any(moved.done for moved in left)
        speak.set()


def test_an_error_of_the_device_makes_the_rank_unusable() -> None:
    with moving() as m:
        m.copies.error = RuntimeError("the GPU has fallen off the bus")
        m.submit(STORE, RAM, [3], slots=[0])
        with pytest.raises(RuntimeError, match="off the bus"):
            m.mover.take(HANG)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateCopies]:
    """Copies of the engines in this process."""
    made: list[LateCopies] = []

    def new(_: Cpu) -> LateCopies:
        made.append(LateCopies(len(made)))
        return made[-1]

    monkeypatch.setattr(Cpu, "copies", property(new))
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tiers", [["ram:8MiB"], ["disk"], ["ram:8MiB", "disk"]])
def test_hits_change_nothing(
    opened: Open, place: str, late: list[LateCopies], family: str, tiers: list[str]
) -> None:
    assert_hits_change_nothing(opened, place, family, tiers)
    assert [each.wrong for each in late] == [[]]


@pytest.mark.parametrize("family", ["qwen2", "alternating"])
def test_random_traffic_gives_what_each_request_gives_alone(
    tmp_path: Path, late: list[LateCopies], family: str
) -> None:
    """With preemptions, cancellations, and two plans in flight; pools are too small."""
    expected = traffic.truth({}, family, seed=1)
    sizes = {"max_num_seqs": traffic.SEQUENCES, "device": "torch", **traffic.SIZES}
    tiers = ["ram:64KiB", f"disk:{tmp_path},64MiB"]
    with engine(family, traffic.BLOCKS, **sizes, kv_tier=tiers) as found:
        scheduler, executor = found
        run = traffic.play(scheduler, executor, traffic.arrivals(1), traffic.some(1))
        assert scheduler.stats().preemptions > 0
    assert sum(row.tier_tokens.ram for _, row in run.rows) > 0
    parted = [
        number for number, ending in run.endings.items() if traffic.parts(ending, expected[number])
    ]
    assert len(parted) <= 1, parted
    assert [each.wrong for each in late] == [[]]
