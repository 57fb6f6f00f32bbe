from array import array

import pytest
from penstock.core import InvalidValueError
from penstock.kv import BlockPool, PrefixCache

from tests.fakes.executor import hash_chain, hash_root

IDENTITY = b"i" * 32
TOKENS = array("i", range(100))


def cache(block_size: int = 32, pool: BlockPool | None = None) -> PrefixCache:
    return PrefixCache(pool or BlockPool(8), block_size, IDENTITY, hash_chain, hash_root)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_block_has_the_digest_of_its_last_unit(block_size: int) -> None:
    units = hash_chain(IDENTITY, None, TOKENS)
    expected = [units[end // 16 - 1] for end in range(block_size, len(TOKENS) + 1, block_size)]
    assert cache(block_size).digests(TOKENS, [], b"") == expected


def test_digests_continue_from_those_already_known() -> None:
    whole = cache().digests(TOKENS, [], b"")
    assert len(whole) == 3
    assert cache().digests(TOKENS, whole[:1], b"") == whole[1:]
    assert cache().digests(TOKENS, whole, b"") == []


def test_a_salt_changes_every_digest() -> None:
    plain, salted = cache().digests(TOKENS, [], b""), cache().digests(TOKENS, [], b"tenant")
    assert not set(plain) & set(salted)


def test_names_begin_with_the_group_of_their_salt() -> None:
    for salt in (b"", b"tenant"):
        digests = cache().digests(TOKENS, [], salt)
        assert {digest[:4] for digest in digests} == {cache().group(salt)}
    assert cache().group(b"") == bytes(4) != cache().group(b"tenant")


def test_lookup_stops_at_the_first_gap_and_at_the_limit() -> None:
    pool = BlockPool(8)
    prefix = cache(pool=pool)
    digests = prefix.digests(TOKENS, [], b"")
    blocks = [pool.take() for _ in digests]
    pool.publish(blocks[0], digests[0])
    pool.publish(blocks[2], digests[2])
    assert prefix.lookup(digests, 3) == blocks[:1]
    pool.publish(blocks[1], digests[1])
    assert prefix.lookup(digests, 3) == blocks
    assert prefix.lookup(digests, 2) == blocks[:2]


@pytest.mark.parametrize("size", [0, 8, 24])
def test_a_block_that_is_no_multiple_of_a_unit_is_refused(size: int) -> None:
    with pytest.raises(InvalidValueError, match="block_size"):
        cache(size)
