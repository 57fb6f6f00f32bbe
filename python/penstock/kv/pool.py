"""Ownership of the KV blocks of one pool. Every operation on a block takes constant time."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from penstock.core import PenstockError


class OutOfBlocksError(PenstockError):
    """`take` was called on a pool without a free block. Callers check `available` first."""


class PoolCorruptError(PenstockError):
    """The audit found a block that leaked, has two owners or a wrong digest. This is a bug in the
    pool or in its caller.
    """


class BlockPool:
    """Blocks 0 .. num_blocks - 1, each owned by any number of sequences and transfers, and
    optionally named by a digest.

    A block is in exactly one state:

        owned        references > 0, named or not
        blank        free and unnamed: reused first, in LIFO order while still in the CPU's caches
        untouched    never used: taken next, so memory grows only when no blank block is left
        cached       free and named: found by `find`; evicted last, in LRU order
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.on_removed: list[Callable[[bytes], object]] = []
        """Called with each digest that the pool removes."""
        self.available = num_blocks
        self._references = array("i", bytes(4 * num_blocks))
        self._digests: list[bytes | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}
        self._blank: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._untouched = 0

    def take(self) -> int:
        """Allocate one block with one reference. If every free block is named by a digest, the
        least recently released one is evicted. Raises OutOfBlocksError if no block is free.
        """
        if self._blank:
            block = self._blank.pop()
        elif self._untouched < self.num_blocks:
            block = self._untouched
            self._untouched += 1
        elif self._cached:
            block = self._evict()
        else:
            raise OutOfBlocksError(f"all {self.num_blocks} KV blocks are owned")
        self._references[block] = 1
        self.available -= 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block that `find` returned."""
        if self._references[block] == 0:
            del self._cached[block]
            self.available -= 1
        self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each block of a table. The last block is released first, so that
        the tail of a prefix is evicted before its head.
        """
        references, digests = self._references, self._digests
        for block in reversed(blocks):
            references[block] -= 1
            if references[block]:
                continue
            self.available += 1
            if digests[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None

    def publish(self, block: int, digest: bytes) -> None:
        """Name an owned block, whose contents are computed, by its digest. If another owned block
        has the digest already, the name stays there. A free block loses it and becomes blank:
        `block` was used later.
        """
        if self._digests[block] is not None:
            return
        holder = self._by_digest.get(digest, block)
        if holder != block:
            if self._references[holder]:
                return
            del self._cached[holder]
            self._digests[holder] = None
            self._blank.append(holder)
        self._by_digest[digest] = block
        self._digests[block] = digest

    def find(self, digest: bytes) -> int:
        """The block with this digest, or -1."""
        return self._by_digest.get(digest, -1)

    @property
    def named(self) -> int:
        """Number of blocks with a digest."""
        return len(self._by_digest)

    def forget(self, digest: bytes) -> bool:
        """Remove a digest; returns whether it existed. An owned block stays with its owners."""
        block = self._by_digest.pop(digest, -1)
        if block < 0:
            return False
        self._digests[block] = None
        if self._references[block] == 0:
            del self._cached[block]
            self._blank.append(block)
        self._report_removed(digest)
        return True

    def forget_all(self, group: bytes = b"") -> int:
        """Remove all digests, or those that start with `group`; returns their number."""
        return sum(
            [self.forget(digest) for digest in list(self._by_digest) if digest.startswith(group)]
        )

    def is_free(self, block: int) -> bool:
        return self._references[block] == 0

    def is_private(self, block: int) -> bool:
        """Whether the block has one owner and no name, so that nobody else reads it."""
        return self._references[block] == 1 and self._digests[block] is None

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        digest = self._digests[block]
        if digest is not None:
            del self._by_digest[digest]
            self._digests[block] = None
            self._report_removed(digest)
        return block

    def _report_removed(self, digest: bytes) -> None:
        for report in self.on_removed:
            report(digest)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Audit the pool against all block tables and blocks that are in use. Raises
        PoolCorruptError, which names one fault.
        """
        owners = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            if self._references[block] != owners[block]:
                raise PoolCorruptError(
                    f"block {block} has {self._references[block]} references, "
                    f"{owners[block]} tables own it"
                )
        self._check_free(owners)
        for digest, block in self._by_digest.items():
            if self._digests[block] != digest:
                raise PoolCorruptError(
                    f"digest {digest.hex()} names block {block}, which is named otherwise"
                )

    def _check_free(self, owners: Counter[int]) -> None:
        free = [*self._blank, *self._cached, *range(self._untouched, self.num_blocks)]
        if len(set(free)) != len(free):
            raise PoolCorruptError("a block is free twice")
        if set(free) & owners.keys():
            raise PoolCorruptError(f"blocks {sorted(set(free) & owners.keys())} are free and owned")
        if len(free) + len(owners) != self.num_blocks or len(free) != self.available:
            raise PoolCorruptError(
                f"{len(free)} blocks are free and {len(owners)} owned of {self.num_blocks}, "
                f"{self.available} are said to be available"
            )
        if any(self._digests[block] is not None for block in self._blank):
            raise PoolCorruptError("a blank block has a name")
