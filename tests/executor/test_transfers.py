"""Keys and values of a real decoder, cut between ranks: what leaves the pool comes back, bit for
bit.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.config import EngineConfig, Raw, resolve
from penstock.core import Allocation, PenstockError, StepResult
from penstock.core.transfer import RAM, OpenTiers, Transfer, TransferKind, TransferResult
from penstock.engine.sizing import size_kv
from penstock.engine.startup import build_executor, read_model
from penstock.executor import Executor
from penstock.model.sharding import plan_grid
from tests.fakes.plans import one_sequence, registration
from tests.limits import HANG

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

BLOCK = 16
PROMPT = [(7 * at + 3) % 256 for at in range(2 * BLOCK + 5)]
KEY, OTHER = bytes([1] * 32), bytes([2] * 32)
GRIDS = [(1, 1), (2, 1), (1, 2), (2, 2)]


class Ranks:
    """An executor of a tiny checkpoint in float32, with a RAM tier and one on disk."""

    def __init__(self, config: EngineConfig) -> None:
        info = read_model(config)
        grid = plan_grid(info.spec, config.parallel.tensor, config.parallel.pipeline)
        self.executor: Executor = build_executor(config, info, grid)
        self.executor.allocate(Allocation(size_kv(config, info, self.executor.loaded).blocks))
        self._step = self._transfer = 0
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self.executor.close()
        self._closed = True

    def open(self, cache: str = "ab" * 32) -> None:
        self.executor.transfers.open_tiers(OpenTiers(cache, 8, HANG))

    def compute(self, tokens: Sequence[int], start: int, blocks: Sequence[int]) -> StepResult:
        self._step += 1
        plan = one_sequence(self._step, tokens, start, blocks, new=registration(logprobs=20))
        return self.executor.submit(plan).result(HANG)

    def move(
        self, kind: TransferKind, tier: int, blocks: Sequence[int] = (), **fields: object
    ) -> TransferResult:
        self._transfer += 1
        self.executor.transfers.transfer(
            Transfer(self._transfer, kind, tier, array("i", blocks), **fields)
        )  # type: ignore[arg-type]
        deadline = time.monotonic() + HANG
        while not (moved := self.executor.transfers.moved()):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        (one,) = moved
        assert one.id == self._transfer
        return one


Open = Callable[..., Ranks]


@pytest.fixture
def ranks(repository: Path, tmp_path: Path) -> Iterator[Open]:
    """`ranks(tp, pp, family)`: the same disk for all of a test; none of them is left afterwards."""
    made: list[Ranks] = []

    def start(tp: int, pp: int, family: str = "llama") -> Ranks:
        texts = {
            "dtype": ("float32",),
            "threads": ("1",),
            "block_size": (str(BLOCK),),
            "kv_cache_memory_bytes": ("4MiB",),
            "tensor_parallel_size": (str(tp),),
            "pipeline_parallel_size": (str(pp),),
            "kv_tier": ("ram:1MiB", f"disk:{tmp_path},16MiB"),
        }
        if tp * pp > 1:
            texts["distributed_executor_backend"] = ("mp",)
        raw = {name: Raw("--" + name, each) for name, each in texts.items()}
        model = repository / "tests/fixtures/tiny" / family
        made.append(Ranks(resolve(raw, str(model), "tiny").engine))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("tp", "pp", "family"), [*((tp, pp, "llama") for tp, pp in GRIDS), (1, 1, "deepseek3")]
)
def test_what_was_stored_is_computed_with_when_it_is_back(
    ranks: Open, tp: int, pp: int, family: str
) -> None:
    each = ranks(tp, pp, family)
    each.open()
    each.compute(PROMPT[: 2 * BLOCK], 0, [0, 1])
    expected = each.compute(PROMPT[2 * BLOCK :], 2 * BLOCK, [0, 1, 2])
    slots = array("i", [5, 3])
    in_ram = each.move(TransferKind.STORE, RAM, [0, 1], slots=slots)
    on_disk = each.move(TransferKind.STORE, 1, [0, 1], keys=KEY)
    for moved in (in_ram, on_disk):
        assert (moved.done, moved.error) == (True, "")
    assert in_ram.bytes > 0
    probed = each.move(TransferKind.PROBE, 1, keys=KEY + OTHER, counts=array("i", [2, 2]))
    assert probed.found == b"\1\0"
    each.compute(list(reversed(PROMPT[: 2 * BLOCK])), 0, [0, 1])  # What was there is no more.
    loads = ([3, 4], {"tier": RAM, "slots": slots}), ([6, 5], {"tier": 1, "keys": KEY})
    for blocks, source in loads:
        loaded = each.move(TransferKind.LOAD, blocks=blocks, **source)
        assert (loaded.done, loaded.error) == (True, "")
        again = each.compute(PROMPT[2 * BLOCK :], 2 * BLOCK, [*blocks, 2])
        assert again == expected
    missing = each.move(TransferKind.LOAD, 1, [3, 4], keys=OTHER)
    assert (missing.done, missing.error) == (False, "")


@pytest.mark.parametrize(
    ("tp", "family"), [(2, "llama"), (1, "llama"), (2, "deepseek3"), (1, "deepseek3")]
)
def test_one_rank_reads_what_two_wrote_and_they_what_it_did(
    ranks: Open, tp: int, family: str
) -> None:
    writer = ranks(tp, 1, family)
    writer.open()
    writer.compute(PROMPT[: 2 * BLOCK], 0, [0, 1])
    expected = writer.compute(PROMPT[2 * BLOCK :], 2 * BLOCK, [0, 1, 2])
    assert writer.move(TransferKind.STORE, 1, [0, 1], keys=KEY).done
    writer.close()
    reader = ranks(3 - tp, 1, family)
    reader.open()
    loaded = reader.move(TransferKind.LOAD, 1, [4, 2], keys=KEY)
    assert (loaded.done, loaded.error) == (True, "")
    found = reader.compute(PROMPT[2 * BLOCK :], 2 * BLOCK, [4, 2, 0])
    assert found.tokens == expected.tokens
    (row,), (wanted,) = found.logprobs[0], expected.logprobs[0]
    assert row[0] == pytest.approx(wanted[0], abs=1e-4)


def test_what_has_another_identity_is_not_there(ranks: Open) -> None:
    writer = ranks(1, 1)
    writer.open()
    writer.compute(PROMPT[:BLOCK], 0, [0])
    assert writer.move(TransferKind.STORE, 1, [0], keys=KEY).done
    other = ranks(1, 1)
    other.open("cd" * 32)
    assert other.move(TransferKind.PROBE, 1, keys=KEY, counts=array("i", [1])).found == b"\0"
    same = ranks(1, 1)
    same.open()
    assert same.move(TransferKind.PROBE, 1, keys=KEY, counts=array("i", [1])).found == b"\1"


def test_transfers_follow_steps_at_once(ranks: Open) -> None:
    """A rank that does not answer may be in the step when the engine asks for its blocks."""
    each = ranks(2, 2)
    each.open()
    for turn in range(50):
        each.compute(PROMPT[: 2 * BLOCK], 0, [0, 1])
        moved = each.move(
            TransferKind.STORE, RAM, [0, 1], slots=array("i", [turn % 4, 4 + turn % 4])
        )
        assert (moved.done, moved.error) == (True, "")


def test_stores_under_way_are_there_after_a_close(ranks: Open) -> None:
    writer = ranks(2, 1)
    writer.open()
    writer.compute(PROMPT[: 2 * BLOCK], 0, [0, 1])
    for number in range(1, 21):
        key = bytes([number] * 32)
        writer.executor.transfers.transfer(
            Transfer(number, TransferKind.STORE, 1, array("i", [0, 1]), keys=key)
        )
    writer.close()
    reader = ranks(2, 1)
    reader.open()
    keys = b"".join(bytes([number] * 32) for number in range(1, 21))
    found = reader.move(TransferKind.PROBE, 1, keys=keys, counts=array("i", [2] * 20)).found
    assert found == bytes([1] * 20)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1)])
def test_a_tier_that_cannot_be_opened_ends_the_start_with_the_reason(
    ranks: Open, tmp_path: Path, tp: int, pp: int
) -> None:
    each = ranks(tp, pp)
    tmp_path.rmdir()
    tmp_path.write_text("a file")
    with pytest.raises(PenstockError, match=tmp_path.name):
        each.open()
