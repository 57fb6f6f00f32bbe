"""The fake tiers themselves: what tests of scheduler and engine rely on."""

from __future__ import annotations

from array import array

import pytest

from penstock.core import Registration, StepPlan
from penstock.core.transfer import RAM, Transfer, TransferKind
from tests.fakes import sampling
from tests.fakes.contract import ContractBrokenError
from tests.fakes.executor import FakeExecutor

BLOCK = 4
KEY, OTHER = bytes([1] * 32), bytes([2] * 32)


def executor(**options: bool) -> FakeExecutor:
    sizes = {"num_blocks": 4, "block_size": BLOCK, "max_num_seqs": 2, "max_batched_tokens": 16}
    made = FakeExecutor(**sizes, named=1, ram_slots=2, **options)  # type: ignore[arg-type]
    made.submit(plan(1, [0, 1], 0, list(range(8)))).result()
    return made


def plan(step: int, blocks: list[int], start: int, tokens: list[int]) -> StepPlan:
    new = StepPlan(step, [Registration(0, sampling.encode())])
    new.slots, new.starts, new.lengths = (
        array("i", [0]),
        array("i", [start]),
        array("i", [len(tokens)]),
    )
    new.tokens, new.sample = array("i", tokens), array("b", [1])
    new.kept, new.added = array("i", [0]), array("i", blocks)
    new.added_offsets = array("i", [0, len(blocks)])
    return new


def transfer(
    number: int, kind: TransferKind, tier: int, blocks: list[int], **fields: object
) -> Transfer:
    return Transfer(number, kind, tier, array("i", blocks), **fields)  # type: ignore[arg-type]


def chunk(number: int, kind: TransferKind, blocks: list[int], key: bytes = KEY) -> Transfer:
    return transfer(number, kind, 1, blocks, keys=key)


def test_what_was_stored_is_loaded_and_computed_with() -> None:
    fake = executor()
    expected = list(fake.submit(plan(2, [0, 1, 2], 8, [8])).result().tokens)
    fake.transfer(chunk(1, TransferKind.STORE, [0, 1]))
    fake.transfer(
        transfer(2, TransferKind.PROBE, 1, [], keys=KEY + OTHER, counts=array("i", [2, 2]))
    )
    assert fake.moved() == []
    assert [moved.done for moved in fake.mover.settle()] == [True, True]
    assert [moved.found for moved in fake.moved()] == [b"", b"\1\0"]
    fake.transfer(chunk(3, TransferKind.LOAD, [3, 2]))
    fake.mover.step()
    assert list(fake.submit(plan(3, [3, 2, 0], 8, [8])).result().tokens) == expected


def test_ram_slots_hold_blocks() -> None:
    fake = executor(auto=True)
    fake.transfer(transfer(1, TransferKind.STORE, RAM, [0, 1], slots=array("i", [1, 0])))
    fake.transfer(transfer(2, TransferKind.LOAD, RAM, [2, 3], slots=array("i", [0, 1])))
    assert [moved.done for moved in fake.moved()] == [True, True]
    assert fake.cells[2 * BLOCK :] == [4, 5, 6, 7, 0, 1, 2, 3]


def test_a_load_of_what_is_not_there_leaves_nothing_to_compute_with() -> None:
    fake = executor(auto=True)
    fake.transfer(chunk(1, TransferKind.LOAD, [2, 3]))
    (moved,) = fake.moved()
    assert (moved.done, moved.error) == (False, "")
    with pytest.raises(ContractBrokenError, match="never computed"):
        fake.submit(plan(2, [2, 3, 0], 8, [8])).result()


def test_blocks_in_a_transfer_are_in_no_plan_that_could_harm() -> None:
    fake = executor()
    fake.transfer(chunk(1, TransferKind.LOAD, [2]))
    fake.transfer(chunk(2, TransferKind.STORE, [0, 1], OTHER))
    fake.submit(plan(2, [0, 1, 3], 8, [8])).result()
    with pytest.raises(ContractBrokenError, match="while they are loaded"):
        fake.submit(plan(3, [0, 1, 2], 8, [8])).result()
    with pytest.raises(ContractBrokenError, match="while they are stored"):
        fake.submit(plan(4, [0, 1], 7, [8])).result()
    with pytest.raises(ContractBrokenError, match="in another transfer"):
        fake.transfer(chunk(3, TransferKind.LOAD, [1]))


def test_what_is_cancelled_fails_or_stalls_is_said_by_the_test() -> None:
    fake = executor()
    fake.mover.stall(1)
    fake.transfer(chunk(1, TransferKind.LOAD, [2]))
    fake.transfer(transfer(2, TransferKind.STORE, RAM, [0], slots=array("i", [0])))
    fake.transfer(transfer(3, TransferKind.STORE, RAM, [1], slots=array("i", [1])))
    fake.transfer(Transfer(0, TransferKind.CANCEL, ids=array("q", [1, 2])))
    assert [(moved.id, moved.done, moved.error) for moved in fake.moved()] == [(2, False, "")]
    assert fake.mover.fail(1, "too slow").id == 1
    assert fake.mover.step().id == 3  # type: ignore[union-attr]
    assert [(moved.id, moved.done, moved.error) for moved in fake.moved()] == [
        (1, False, "too slow"),
        (3, True, ""),
    ]
    fake.mover.heal(1)
    assert fake.mover.step() is None


def test_a_name_stands_for_one_content() -> None:
    fake = executor(auto=True)
    fake.transfer(chunk(1, TransferKind.STORE, [0]))
    with pytest.raises(ContractBrokenError, match="other contents"):
        fake.transfer(chunk(2, TransferKind.STORE, [1]))
