from array import array

import pytest

from penstock.kv import BlockPool, OutOfBlocksError, PoolCorruptError
from tests.fakes.followed import Followed


def take(pool: BlockPool, count: int) -> list[int]:
    return [pool.take() for _ in range(count)]


def name(block: int) -> bytes:
    return bytes([block]) * 32


def pool_with_cached(order: list[int], size: int = 4) -> BlockPool:
    """All blocks taken, named, and freed one by one in `order`."""
    pool = BlockPool(size)
    for block in take(pool, size):
        pool.publish(block, name(block))
    for block in order:
        pool.release([block])
    return pool


def test_warm_unnamed_blocks_come_before_untouched_ones() -> None:
    pool = BlockPool(4)
    first = pool.take()
    pool.release([first])
    assert take(pool, 4) == [0, 1, 2, 3]


def test_cached_blocks_are_taken_last_and_least_recently_used_first() -> None:
    pool = pool_with_cached([2, 0, 3, 1])
    assert take(pool, 4) == [2, 0, 3, 1]
    assert [pool.find(name(block)) for block in range(4)] == [-1] * 4


def test_untouched_blocks_come_before_cached_ones() -> None:
    pool = BlockPool(3)
    block = pool.take()
    pool.publish(block, name(block))
    pool.release([block])
    assert take(pool, 2) == [1, 2]
    assert pool.find(name(block)) == block


def test_the_tail_of_a_table_is_reused_before_its_head() -> None:
    pool = BlockPool(3)
    table = take(pool, 3)
    for block in table:
        pool.publish(block, name(block))
    pool.release(table)
    assert take(pool, 3) == table[::-1]


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool = pool_with_cached([0, 1, 2, 3])
    pool.share(1)
    pool.share(1)
    assert pool.available == 3
    pool.check([[1], [1]])
    pool.release([1])
    assert pool.available == 3
    pool.release([1])
    assert pool.available == 4
    pool.check([])


def test_use_moves_a_cached_block_to_the_end_of_the_line() -> None:
    pool = pool_with_cached([0, 1, 2, 3])
    pool.share(0)
    pool.release([0])
    assert take(pool, 4) == [1, 2, 3, 0]


def test_the_first_block_of_a_digest_keeps_the_name() -> None:
    pool = BlockPool(2)
    first, second = take(pool, 2)
    pool.publish(first, b"d")
    pool.publish(second, b"d")
    assert pool.find(b"d") == first
    pool.release([first, second])
    pool.check([])
    assert take(pool, 2) == [second, first]


def test_a_free_block_gives_its_name_to_a_later_one() -> None:
    """The later block was used last, so it is evicted last."""
    pool = BlockPool(3)
    first, other, second = take(pool, 3)
    pool.publish(first, b"d")
    pool.publish(other, b"o")
    pool.release([first])
    pool.publish(second, b"d")
    assert (pool.find(b"d"), pool.named, pool.available) == (second, 2, 1)
    pool.release([other])
    pool.release([second])
    pool.check([])
    assert take(pool, 3) == [first, other, second]
    assert pool.named == 0


def test_a_name_that_moves_is_not_reported_as_removed() -> None:
    pool, followed = BlockPool(2), Followed()
    pool.on_removed.append(followed.removed)
    first, second = take(pool, 2)
    pool.publish(first, b"d")
    followed.stored(b"d", None, array("i"))
    pool.release([first])
    pool.publish(second, b"d")
    assert b"d" in followed.blocks
    assert pool.forget(b"d")
    assert b"d" not in followed.blocks


def test_a_group_is_forgotten_and_the_others_are_not() -> None:
    pool = BlockPool(3)
    blocks = take(pool, 3)
    names = [b"aaaa1", b"bbbb1", b"aaaa2"]
    for block, digest in zip(blocks, names, strict=True):
        pool.publish(block, digest)
    pool.release(blocks[:1])
    assert pool.forget_all(b"aaaa") == 2
    assert [pool.find(digest) for digest in names] == [-1, blocks[1], -1]
    pool.check([blocks[1:]])
    assert pool.forget_all() == 1
    pool.release(blocks[1:])
    pool.check([])


def test_an_exhausted_pool_says_how_large_it_is() -> None:
    pool = BlockPool(2)
    take(pool, 2)
    with pytest.raises(OutOfBlocksError, match="all 2 KV blocks"):
        pool.take()


def test_the_audit_finds_a_leaked_block() -> None:
    pool = BlockPool(2)
    pool.take()
    with pytest.raises(PoolCorruptError, match="block 0 has 1 references, 0 tables own it"):
        pool.check([])


def test_the_audit_finds_a_block_owned_twice() -> None:
    pool = BlockPool(2)
    block = pool.take()
    with pytest.raises(PoolCorruptError, match="2 tables own it"):
        pool.check([[block], [block]])


def test_the_audit_finds_a_block_freed_twice() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.release([block])
    pool.release([block])
    with pytest.raises(PoolCorruptError):
        pool.check([])
