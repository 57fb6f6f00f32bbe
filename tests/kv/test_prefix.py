from array import array
from typing import Any

import pytest

from penstock.core import InvalidValueError
from penstock.kv import BlockHasher, BlockTable, KvCache
from tests.fakes.executor import hash_chain, hash_root

IDENTITY = b"i" * 32
TOKENS = array("i", range(100))


def hasher(block_size: int = 32) -> BlockHasher:
    return BlockHasher(block_size, IDENTITY, hash_chain, hash_root)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_block_has_the_digest_of_its_last_unit(block_size: int) -> None:
    units = hash_chain(IDENTITY, None, TOKENS)
    expected = [units[end // 16 - 1] for end in range(block_size, len(TOKENS) + 1, block_size)]
    assert hasher(block_size).digests(TOKENS, [], b"") == expected


def test_digests_continue_from_those_already_known() -> None:
    whole = hasher().digests(TOKENS, [], b"")
    assert len(whole) == 3
    assert hasher().digests(TOKENS, whole[:1], b"") == whole[1:]
    assert hasher().digests(TOKENS, whole, b"") == []


def test_a_salt_changes_every_digest() -> None:
    plain, salted = hasher().digests(TOKENS, [], b""), hasher().digests(TOKENS, [], b"tenant")
    assert not set(plain) & set(salted)


def test_an_adapter_changes_every_digest() -> None:
    chains = [hasher().digests(TOKENS, [], b"t", adapter) for adapter in (0, 1, 256)]
    assert chains[0] == hasher().digests(TOKENS, [], b"t")
    assert len({digest for chain in chains for digest in chain}) == 3 * len(chains[0])


def test_names_begin_with_the_group_of_their_salt() -> None:
    for salt in (b"", b"tenant"):
        digests = hasher().digests(TOKENS, [], salt)
        assert {digest[:4] for digest in digests} == {hasher().salt_group(salt)}
    assert hasher().salt_group(b"") == bytes(4) != hasher().salt_group(b"tenant")


def filled(
    windows: list[int | None], names: int, **options: Any
) -> tuple[KvCache, BlockTable, list[bytes]]:
    """A cache with a table of 96 tokens in blocks of 16, of which the first `names` are named."""
    kv = KvCache(16, [12] * len(windows), windows=windows, hasher=hasher(16), **options)
    table = kv.table()
    assert kv.grow(table, 96)
    digests = hasher(16).digests(TOKENS, [], b"")
    for entry in range(names):
        kv.publish(table, entry, digests[entry])
    return kv, table, digests


@pytest.mark.parametrize("windows", [[None], [20], [None, 20], [33, None, 16]])
def test_a_hit_ends_at_the_first_gap_and_at_the_limit(windows: list[int | None]) -> None:
    kv, _, digests = filled(windows, 4)
    assert kv.find_prefix(digests, 6).hits == 4
    assert kv.find_prefix(digests, 3).hits == 3
    kv.forget(digests[2])
    assert kv.find_prefix(digests, 6).hits == 2


def test_nothing_is_found_where_names_are_for_others() -> None:
    kv, _, digests = filled([None], 4, searched=False)
    assert kv.find_prefix(digests, 6).hits == 0


def test_a_window_needs_only_the_blocks_that_the_next_token_sees() -> None:
    kv, table, digests = filled([None, 20], 6)
    kv.give_back(table, 96)
    kv.release(table)
    kv.pools[1].forget(digests[0])
    kv.pools[1].forget(digests[3])
    # A token at 96 sees those from 77 on: blocks 4 and 5. At 80 it would see block 3.
    assert kv.find_prefix(digests, 6).hits == 6
    assert kv.find_prefix(digests, 5).hits == 3
    assert kv.find_prefix(digests, 2).hits == 0


def test_a_chunk_needs_the_blocks_from_its_beginning_on() -> None:
    kv, _, digests = filled([None, 40], 6, chunked=(False, True))
    kv.pools[1].forget(digests[1])
    kv.pools[1].forget(digests[3])
    # A token at 96 sees those from 80 on, one at 80 itself alone; one at 64 or 48 sees those from
    # 40 on, one at 32 those from 0 on.
    assert kv.find_prefix(digests, 6).hits == 6
    assert kv.find_prefix(digests, 5).hits == 5
    assert kv.find_prefix(digests, 4).hits == 3
    assert kv.find_prefix(digests, 2).hits == 1


def test_a_shorter_hit_of_one_window_is_checked_by_the_others() -> None:
    kv, _, digests = filled([16, 40], 6)
    kv.pools[0].forget(digests[4])
    kv.pools[1].forget(digests[1])
    # Six blocks need block 5 of the first group and 3 to 5 of the second.
    assert kv.find_prefix(digests, 6).hits == 6
    # Five need block 4 of the first; four then need block 1 of the second; one needs block 0.
    assert kv.find_prefix(digests, 5).hits == 1


def test_a_hit_shares_visible_blocks_and_has_none_behind_the_window() -> None:
    kv, table, digests = filled([None, 20], 6)
    other = kv.table()
    assert kv.admit(other, digests, 5, 90, 0)
    assert list(other.groups[0][:5]) == list(table.groups[0][:5])
    assert list(other.groups[1][:5]) == [-1, -1, -1, *table.groups[1][3:5]]
    kv.check([table, other])
    kv.release(table)
    kv.release(other)
    kv.check([])


@pytest.mark.parametrize("size", [0, 8, 24])
def test_a_block_that_is_no_multiple_of_a_unit_is_refused(size: int) -> None:
    with pytest.raises(InvalidValueError, match="block_size"):
        hasher(size)
