"""The RAM tier of a GPU: pinned slots that the engine names."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from penstock.backends.torch.copies import Copies
from penstock.backends.torch.staging import Lanes, PinnedSlots
from penstock.core.transfer import Moved, Transfer, TransferKind


class RamTier:
    def __init__(
        self, slots: PinnedSlots, copies: Copies, lanes: Lanes, answer: Callable[[Moved], None]
    ) -> None:
        self._slots, self._copies, self._lanes, self._answer = slots, copies, lanes, answer
        self._last: dict[int, Future[None]] = {}
        """The last copy of each slot: the one behind it in the other direction waits for it."""

    def submit(self, transfer: Transfer) -> None:
        """Called by one thread."""
        before = {self._last[slot] for slot in transfer.slots if slot in self._last}
        outward = transfer.kind is TransferKind.STORE
        lane = self._lanes.outward if outward else self._lanes.inward
        copied = lane(self._copy, transfer, before, time.monotonic())
        self._last.update(dict.fromkeys(transfer.slots, copied))

    def _copy(self, transfer: Transfer, before: set[Future[None]], asked: float) -> None:
        wait(before)
        waited = time.monotonic() - asked
        pairs = self._slots.pairs(transfer, transfer.slots)
        size = sum(block.nbytes for block, _ in pairs)
        if transfer.kind is TransferKind.STORE:
            copied = self._copies.to_host([(slot, block) for block, slot in pairs])
        else:
            copied = self._copies.to_device(pairs)
        seconds = copied.result()
        self._answer(Moved(transfer.id, True, bytes=size, seconds=seconds, waited=waited))
