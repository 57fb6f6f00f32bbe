"""Pinned host memory: staging chunks, through which blocks move between a GPU and a tier, and the
RAM tier of a GPU.

A slot holds a block of every KV group. The engine assigns the slots of a RAM tier. The slots of a
staging chunk are contiguous, one per block of a tier's chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from penstock.backends.torch.async_copy import PAGE, Copies, Pair
from penstock.backends.torch.kv.pool import Layout, Pool
from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import Transfer, TransferKind

CHUNKS = 6
"""Staging chunks per tier: one for each of the tier's four threads, and two in copies from or to
the GPU.
"""
STORES = 4
"""Maximum staging chunks of a tier that stores may hold. The others are reserved for loads."""
LEFT_BEHIND: list[Tensor] = []
"""Pinned memory that a hung copy may still use. It is never freed."""


class PinnedSlots:
    """Slots in pinned memory. Each holds one block of every pool in `pools`."""

    def __init__(self, pools: Sequence[Pool], slots: int, copies: Copies) -> None:
        sizes = [_rounded(slots * pool.layout.block_bytes) for pool in pools]
        self._copies, self._pools = copies, pools
        self._memory = copies.pin(sum(sizes))
        self.groups: list[Tensor] = []
        """For each KV group: its tensor [slots, ...] of blocks."""
        rest = self._memory
        for pool, size in zip(pools, sizes, strict=True):
            self.groups.append(_blocks(rest, slots, pool.layout))
            rest = rest[size:]

    def pairs(self, transfer: Transfer, slots: Sequence[int]) -> list[Pair]:
        """For each block of the transfer: its memory on the device, and its place in `slots` (one
        slot for each block table entry, in all groups). NO_BLOCK entries are skipped.
        """
        count, found = len(slots), []
        for at, block in enumerate(transfer.blocks):
            pool = self._pools[at // count]
            if block != NO_BLOCK and pool.layout.block_bytes:
                found.append((pool.blocks[block], self.groups[at // count][slots[at % count]]))
        return found

    def close(self) -> None:
        self._copies.unpin(self._memory)

    def leave_behind(self) -> int:
        """Keep the memory until the process ends. Returns its size in bytes."""
        LEFT_BEHIND.append(self._memory)
        return len(self._memory)


class Chunks:
    """Staging chunks of one tier, and a queue of transfers that wait for one. Loads have
    priority.
    """

    def __init__(self, first: int, blocks: int) -> None:
        """Each chunk has `blocks` slots; the first chunk begins at slot `first`."""
        self.blocks = blocks
        self._free = deque(range(first, first + CHUNKS * blocks, blocks))
        self._stores: set[int] = set()
        """First slots of the chunks that stores hold."""
        self._waiting: dict[TransferKind, deque[Transfer]] = {
            TransferKind.LOAD: deque(),
            TransferKind.STORE: deque(),
        }

    def wait(self, transfer: Transfer) -> None:
        self._waiting[transfer.kind].append(transfer)

    def next(self) -> tuple[Transfer, range] | None:
        """The next transfer that can start, and the slots of the staging chunk that it gets; None
        if there is none.
        """
        loads, stores = self._waiting.values()
        if loads and self._free:
            return loads.popleft(), self._slots()
        if stores and self._free and len(self._stores) < STORES:
            slots = self._slots()
            self._stores.add(slots.start)
            return stores.popleft(), slots
        return None

    def drop(self, unwanted: Callable[[Transfer], bool]) -> list[Transfer]:
        """Remove and return the waiting transfers that match `unwanted`."""
        dropped = []
        for queue in self._waiting.values():
            dropped += [each for each in queue if unwanted(each)]
            kept = [each for each in queue if not unwanted(each)]
            queue.clear()
            queue.extend(kept)
        return dropped

    def _slots(self) -> range:
        first = self._free.popleft()
        return range(first, first + self.blocks)

    def give_back(self, slots: range) -> None:
        self._stores.discard(slots.start)
        self._free.append(slots.start)


def _rounded(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _blocks(memory: Tensor, count: int, layout: Layout) -> Tensor:
    used = memory[: count * layout.block_bytes]
    return used.view(layout.dtype).view(count, *layout.shape)
