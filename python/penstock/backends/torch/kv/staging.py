"""Pinned memory of the host that blocks of a device go through, and that a RAM tier keeps them in.

A slot has a block of every KV group. A RAM tier's slots are named by the engine; slots of a staging
chunk are one after another, as many as a chunk of a tier has blocks.
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
"""Staging chunks of each tier: its four threads have one each, two are on their way."""
STORES = 4
"""Those that stores may have at once, so that a load finds one."""
LEFT_BEHIND: list[Tensor] = []
"""Pinned memory that a copy may still use, which does not end: never given back."""


class PinnedSlots:
    """Slots of pinned memory for the blocks of `pools`."""

    def __init__(self, pools: Sequence[Pool], slots: int, copies: Copies) -> None:
        sizes = [_rounded(slots * pool.layout.block_bytes) for pool in pools]
        self._copies, self._pools = copies, pools
        self._memory = copies.pin(sum(sizes))
        self.groups: list[Tensor] = []
        """[slots, ...] of each KV group."""
        rest = self._memory
        for pool, size in zip(pools, sizes, strict=True):
            self.groups.append(_blocks(rest, slots, pool.layout))
            rest = rest[size:]

    def pairs(self, transfer: Transfer, slots: Sequence[int]) -> list[Pair]:
        """Blocks of the device, and where they are in slots: one for each entry of the tables."""
        count, found = len(slots), []
        for at, block in enumerate(transfer.blocks):
            pool = self._pools[at // count]
            if block != NO_BLOCK and pool.layout.block_bytes:
                found.append((pool.blocks[block], self.groups[at // count][slots[at % count]]))
        return found

    def close(self) -> None:
        self._copies.unpin(self._memory)

    def leave_behind(self) -> int:
        """Keep the memory as it is until the process ends; its bytes."""
        LEFT_BEHIND.append(self._memory)
        return len(self._memory)


class Chunks:
    """Staging chunks of one tier, and the transfers that wait for one: loads first."""

    def __init__(self, first: int, blocks: int) -> None:
        """`blocks` slots for each chunk, from the slot `first` on."""
        self.blocks = blocks
        self._free = deque(range(first, first + CHUNKS * blocks, blocks))
        self._stores: set[int] = set()
        """First slots of the chunks that stores have."""
        self._waiting: dict[TransferKind, deque[Transfer]] = {
            TransferKind.LOAD: deque(),
            TransferKind.STORE: deque(),
        }

    def wait(self, transfer: Transfer) -> None:
        self._waiting[transfer.kind].append(transfer)

    def next(self) -> tuple[Transfer, range] | None:
        """A transfer that may begin, and its slots."""
        loads, stores = self._waiting.values()
        if loads and self._free:
            return loads.popleft(), self._slots()
        if stores and self._free and len(self._stores) < STORES:
            slots = self._slots()
            self._stores.add(slots.start)
            return stores.popleft(), slots
        return None

    def drop(self, unwanted: Callable[[Transfer], bool]) -> list[Transfer]:
        """Take transfers out that wait."""
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
