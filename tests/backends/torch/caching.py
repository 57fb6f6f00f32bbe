"""A model of torch's caching allocator, in numbers alone: what it takes from a GPU, and keeps.

After PyTorch's c10/cuda/CUDACachingAllocator.cpp, with its defaults. A segment is what the driver
gives; blocks are cut from it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

SMALL, LARGE = 1 << 20, 10 << 20
SMALL_SEGMENT, SEGMENT = 2 << 20, 20 << 20


@dataclass(eq=False, slots=True)
class Segment:
    size: int
    blocks: list[Block] = field(default_factory=list)
    """In the order of their addresses."""


@dataclass(eq=False, slots=True)
class Block:
    segment: Segment
    owner: Hashable
    """Stream, or pool of graphs, and whether it has small blocks: others have no use of it."""
    size: int
    free: bool = True


class Allocator:
    def __init__(self, total: int) -> None:
        """A GPU with so many bytes."""
        self.total = total
        self.reserved = self.most = 0
        self.releases = 0
        """How often memory that was kept had to be given back for a tensor."""
        self.owner: Hashable = "stream"
        self.kept: Counter[Hashable] = Counter()
        """Bytes by stream and pool."""
        self.pools: Counter[Hashable] = Counter()
        """Graphs of each pool: its memory stays with them."""
        self._free: dict[Hashable, list[Block]] = {}

    @property
    def left(self) -> int:
        """What the driver could give."""
        return self.total - self.reserved

    def take(self, size: int) -> Block:
        size = max(512, -(-size // 512) * 512)
        owner = (self.owner, size <= SMALL)
        free = self._free.setdefault(owner, [])
        fitting = [block for block in free if block.size >= size]
        block = min(fitting, key=lambda own: own.size) if fitting else self._segment(size, owner)
        if block in free:
            free.remove(block)
        block.free = False
        rest = block.size - size
        if rest >= 512 if size <= SMALL else rest > SMALL:
            block.size = size
            left = Block(block.segment, owner, rest)
            own = block.segment.blocks
            own.insert(own.index(block) + 1, left)
            free.append(left)
        return block

    def give_back(self, block: Block) -> None:
        block.free = True
        own, free = block.segment.blocks, self._free[block.owner]
        at = own.index(block)
        for other in own[at + 1 : at + 2] + own[max(at - 1, 0) : at]:
            if other.free:
                block.size += other.size
                own.remove(other)
                free.remove(other)
        free.append(block)

    def release(self) -> None:
        """Give segments without a tensor back to the driver, but for those of graphs."""
        for (owner, _), free in self._free.items():
            for block in list(free):
                if block.size == block.segment.size and self.pools[owner] == 0:
                    free.remove(block)
                    self.reserved -= block.size
                    self.kept[owner] -= block.size

    def _segment(self, size: int, owner: Hashable) -> Block:
        wanted = segment_size(size)
        if wanted > self.left and not is_graphs(self.owner):
            self.releases += 1
            self.release()
        if wanted > self.left:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes. GPU 0 has a total capacity "
                f"of {self.total} bytes of which {self.left} is free."
            )
        self.reserved += wanted
        self.kept[self.owner] += wanted
        self.most = max(self.most, self.reserved)
        segment = Segment(wanted)
        segment.blocks.append(Block(segment, owner, wanted))
        return segment.blocks[0]


class Storages:
    """Takes memory for storages of tensors, until they are freed."""

    def __init__(self, memory: Allocator) -> None:
        self._memory = memory
        self._known: set[int] = set()
        self.now = self.most = 0
        """Bytes as tensors have them."""

    def take(self, storage: torch.UntypedStorage, *, there: bool = False) -> None:
        """`there`: it was there before, and takes none."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return
        self._known.add(key)
        if there:
            weakref.finalize(storage, self._known.discard, key)
            return
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._free, key, size, self._memory.take(size))

    def _free(self, key: int, size: int, block: Block) -> None:
        self._known.discard(key)
        self.now -= size
        self._memory.give_back(block)


def segment_size(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < LARGE:
        return SEGMENT
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


def is_graphs(owner: Hashable) -> bool:
    return isinstance(owner, tuple)
