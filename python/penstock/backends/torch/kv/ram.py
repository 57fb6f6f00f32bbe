"""The RAM tier of a GPU: pinned slots, which the engine assigns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from penstock.backends.torch.async_copy import Copies
from penstock.backends.torch.kv.copy_workers import Job, Lanes
from penstock.backends.torch.kv.staging import PinnedSlots
from penstock.core.transfer import Transfer, TransferKind, TransferResult

CLOSED = "tier is closed before this was done"


class RamTier:
    def __init__(
        self,
        slots: PinnedSlots,
        copies: Copies,
        lanes: Lanes,
        answer: Callable[[TransferResult], None],
    ) -> None:
        self._slots, self._copies, self._lanes, self._answer = slots, copies, lanes, answer
        self._last: dict[int, Job] = {}
        """The last copy from or to each slot of the RAM tier. A later copy of the slot in the other
        direction waits for it.
        """
        self._lock = threading.Lock()
        self._open: set[int] = set()
        """Ids of unanswered transfers."""

    def submit(self, transfer: Transfer) -> None:
        """Start the copy of a store or load. Must be called by one thread only."""
        before = {self._last[slot] for slot in transfer.slots if slot in self._last}
        outward = transfer.kind is TransferKind.STORE
        lane = self._lanes.outward if outward else self._lanes.inward
        with self._lock:
            self._open.add(transfer.id)
        copied = lane.submit(
            partial(self._copy, transfer, before, time.monotonic()),
            partial(self._answer_once, TransferResult(transfer.id, False, error=CLOSED)),
        )
        self._last.update(dict.fromkeys(transfer.slots, copied))

    def close(self) -> None:
        """Answer the transfers whose copies hang as failed."""
        with self._lock:
            left = sorted(self._open)
        for each in left:
            self._answer_once(TransferResult(each, False, error=CLOSED))

    def _copy(self, transfer: Transfer, before: Iterable[Job], asked: float) -> None:
        # If an earlier copy failed or was dropped, the slot does not hold the data of this
        # transfer.
        if not all(job.wait() for job in before):
            self._answer_once(TransferResult(transfer.id, False, error=CLOSED))
            return
        waited = time.monotonic() - asked
        pairs = self._slots.pairs(transfer, transfer.slots)
        size = sum(block.nbytes for block, _ in pairs)
        if transfer.kind is TransferKind.STORE:
            copied = self._copies.to_host([(slot, block) for block, slot in pairs])
        else:
            copied = self._copies.to_device(pairs)
        seconds = copied.result()
        moved = TransferResult(transfer.id, True, bytes=size, seconds=seconds, waited=waited)
        self._answer_once(moved)

    def _answer_once(self, moved: TransferResult) -> None:
        with self._lock:
            known = moved.id in self._open
            self._open.discard(moved.id)
        if known:
            self._answer(moved)
