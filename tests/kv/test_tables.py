"""Block tables of several groups: growth, what a window gives back, admission, the audit."""

import pytest

from penstock.core import InvalidValueError
from penstock.kv import BlockTable, KvCache, PoolCorruptError, window_blocks


def cache(
    *blocks: int,
    windows: list[int | None] | None = None,
    chunked: tuple[bool, ...] = (),
    step: int = 16,
) -> KvCache:
    windows = windows or [None] * len(blocks)
    return KvCache(16, blocks, windows=windows, chunked=chunked, step_tokens=step)


def sizes(kv: KvCache, table: BlockTable) -> list[int]:
    """Blocks that the table owns in each group."""
    kv.check([table])
    return [len(blocks) - behind for blocks, behind in zip(table.groups, table.behind, strict=True)]


def test_a_table_grows_in_all_groups_or_in_none() -> None:
    kv = cache(8, 3)
    table = kv.table()
    assert kv.grow(table, 33)
    assert (sizes(kv, table), table.capacity) == ([3, 3], 48)
    assert not kv.grow(table, 49)
    assert (sizes(kv, table), table.capacity) == ([3, 3], 48)


def test_a_window_gives_back_what_no_later_token_sees() -> None:
    kv = cache(8, 8, windows=[None, 20])
    table = kv.table()
    kv.grow(table, 96)
    for position, owned in [(1, 6), (35, 5), (36, 5), (51, 4), (67, 3), (96, 2)]:
        kv.give_back(table, position)
        assert sizes(kv, table) == [6, owned]
        # Table entries stay where their positions are.
        assert len(table.groups[1]) == 6
        seen = (position - 20 + 1) // 16 if position >= 20 else 0
        assert all(block >= 0 for block in table.groups[1][seen:])


@pytest.mark.parametrize("chunk", [32, 40])
def test_a_chunk_gives_back_its_blocks_at_its_end(chunk: int) -> None:
    kv = cache(8, 8, windows=[None, chunk], chunked=(False, True))
    table = kv.table()
    kv.grow(table, 96)
    for position in range(1, 97):
        kv.give_back(table, position)
        # The token at `position` sees its chunk, which may begin within a block.
        first = next(at for at in range(position + 1) if at // chunk == position // chunk)
        assert sizes(kv, table) == [6, 6 - first // 16]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("step", [1, 16, 40])
def test_a_window_bounds_the_blocks_of_a_sequence_whatever_its_length(
    step: int, chunked: bool
) -> None:
    bound = window_blocks(50, step, 16)
    kv = cache(200, bound, windows=[None, 50], chunked=(False, chunked), step=step)
    table = kv.table()
    for computed in range(0, 3000, step):
        assert kv.grow(table, computed + step)
        assert sizes(kv, table)[1] <= bound
        kv.give_back(table, computed + step)
    assert kv.shortage(3000) is None


def test_a_shortage_is_that_of_one_sequence_alone() -> None:
    assert cache(4).shortage(64) is None
    assert cache(4).shortage(65) == (5, 4)
    assert cache(9, 4, windows=[None, 20]).shortage(130) is None
    assert cache(9, 3, windows=[None, 20]).shortage(130) == (4, 3)


def test_an_admission_leaves_spare_blocks() -> None:
    kv = cache(5)
    assert not kv.admit(kv.table(), [], 0, 64, 2)
    table = kv.table()
    assert kv.admit(table, [], 0, 64, 1)
    assert sizes(kv, table) == [4]


def test_an_admission_takes_blocks_of_one_step_behind_a_window() -> None:
    kv = cache(50, 5, windows=[None, 20], step=32)
    table = kv.table()
    assert kv.admit(table, [], 0, 640, 0)
    assert (sizes(kv, table), table.capacity) == ([40, 2], 32)


def test_an_emptied_table_owns_nothing() -> None:
    kv = cache(8, 8, windows=[None, 20])
    table = kv.table()
    kv.grow(table, 96)
    kv.give_back(table, 96)
    table.sent = 6
    kv.release(table)
    assert (sizes(kv, table), table.capacity, table.sent) == ([0, 0], 0, 0)
    assert kv.used == 0


def test_the_audit_knows_the_group() -> None:
    kv = cache(2, 2)
    table = kv.table()
    kv.grow(table, 16)
    kv.check([], [(0, table.groups[0]), (1, table.groups[1])])
    with pytest.raises(PoolCorruptError, match="block 0 has 1 references, 0 tables own it"):
        kv.check([], [(0, table.groups[0])])


def test_each_group_has_a_number_of_blocks() -> None:
    with pytest.raises(InvalidValueError, match="2 groups"):
        cache(8, windows=[None, 20])


@pytest.mark.parametrize("window", [1, 16, 17, 40, 200])
@pytest.mark.parametrize("resume", range(8))
@pytest.mark.parametrize("tokens", [112, 113, 130])
def test_an_admission_behind_a_load_has_what_the_rest_sees(
    window: int, resume: int, tokens: int
) -> None:
    kv = cache(20, 20, windows=[None, window], step=32)
    table = kv.table()
    assert kv.admit(table, [], 0, tokens, 0, resume)
    full, windowed = table.groups
    assert len(full) == -(-tokens // 16)
    assert min(full) >= 0
    first = min(resume * 16, tokens - 1)
    seen = {at // 16 for at in range(max(first - window + 1, 0), min(first + 32, tokens))}
    assert {at for at, block in enumerate(windowed) if block >= 0} == seen
    assert table.capacity >= min(first + 32, tokens)
    kv.check([table])
    kv.release(table)
    assert kv.used == 0
