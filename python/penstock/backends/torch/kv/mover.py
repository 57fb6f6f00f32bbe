"""KV transfers between the pools of a GPU and the tiers of its rank, staged in pinned host memory.

A store is copied from the pools to a staging chunk, which the native mover writes to the tier. A
load goes the other way. The RAM tier, which is pinned itself, and direct loads need no staging
chunk. A transfer is answered after its last copy, so later steps never read incomplete blocks.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue

from penstock.backends import KvMover
from penstock.backends.torch.async_copy import Copies
from penstock.backends.torch.kv.copy_workers import Lanes
from penstock.backends.torch.kv.direct import DirectLoads
from penstock.backends.torch.kv.ram import RamTier
from penstock.backends.torch.kv.staging import Chunks, PinnedSlots
from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import RAM, Fault, Transfer, TransferKind, TransferResult

LAST = 0
"""Sentinel id that ends the answer thread. The engine's transfer ids start at 1."""
WAIT_S = 60.0
"""Timeout in seconds of one wait for the native mover's answers; the thread then waits again."""
GRACE_S = 10.0
"""Additional seconds for copies in flight at shutdown, after the time limit for stores."""
MOVEMENTS = (TransferKind.LOAD, TransferKind.STORE)
REMOVALS = (TransferKind.REMOVE, TransferKind.CLEAR)
Answers = SimpleQueue[TransferResult | Exception]
"""Results of transfers. An exception instead of a result makes the rank unusable."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Staged:
    """A transfer that holds a staging chunk."""

    transfer: Transfer
    chunk: range
    slots: range
    """Slots of `chunk` that this transfer uses, one per block."""
    asked: float
    waited: float = 0.0
    copied: float = 0.0
    """Seconds that its copies between pool and staging chunk took."""

    def in_staging(self) -> Transfer:
        """The transfer for the native mover, with staging slots in place of pool blocks."""
        blocks, count = self.transfer.blocks, len(self.slots)
        places = (
            NO_BLOCK if block == NO_BLOCK else self.slots[at % count]
            for at, block in enumerate(blocks)
        )
        return replace(self.transfer, blocks=array("i", places))


class StagedMover:
    """The KvMover of a GPU. `native` moves bytes between the slots of `staging` and the tiers;
    `chunks` has the staging chunks of each tier other than RAM, in order.
    """

    def __init__(
        self,
        native: KvMover,
        ram: PinnedSlots,
        staging: PinnedSlots,
        chunks: Sequence[Chunks],
        copies: Copies,
        direct: Mapping[int, DirectLoads],
        answers: Answers,
    ) -> None:
        """`direct`: GPUDirect loads by tier number. They put their results into `answers` too."""
        self._native, self._copies = native, copies
        self._pinned, self._staging, self._chunks = (ram, staging), staging, chunks
        self._direct, self._answers = direct, answers
        self._lanes = Lanes(self._answers.put)
        self._ram = RamTier(ram, copies, self._lanes, self._answers.put)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._asked: dict[int, float] = {}
        """Submission time of each transfer that waits for a staging chunk, by id."""
        self._staged: dict[int, Staged] = {}
        self._new_stores: set[int] = set()
        """Stores not yet submitted to the native mover."""
        self._removals: list[tuple[Transfer, set[int]]] = []
        """Removals held back until earlier stores are submitted to the native mover."""
        self._closed = False
        self._taking_in = threading.Thread(target=self._take_in, name="kv-staged", daemon=True)
        self._taking_in.start()

    def submit(self, transfer: Transfer) -> None:
        kind, tier = transfer.kind, transfer.tier
        with self._lock:
            if kind is TransferKind.CANCEL:
                wanted = set(transfer.ids)
                self._drop(lambda each: each.id in wanted, "")
                for loads in self._direct.values():
                    loads.cancel(transfer.ids)
                self._native.submit(transfer)
            elif kind in MOVEMENTS and self._closed:
                self._refuse(transfer, "is closed")
            elif kind in MOVEMENTS and tier == RAM:
                self._ram.submit(transfer)
            elif kind is TransferKind.LOAD and tier in self._direct:
                self._direct[tier].submit(transfer)
            elif kind in MOVEMENTS:
                self._wait_for_chunk(transfer)
            elif kind in REMOVALS:
                self._removals.append((transfer, set(self._new_stores)))
                self._begin_removals()
            else:
                self._native.submit(transfer)

    def take(self, timeout: float = 0.0) -> list[TransferResult]:
        found: list[TransferResult] = []
        try:
            while True:
                each = self._answers.get(timeout=0.0 if found else timeout)
                if isinstance(each, Exception):
                    raise each
                found.append(each)
        except Empty:
            return found

    def report(self) -> str:
        return self._native.report()

    def close(self, seconds: float) -> None:
        """Drop queued loads and finish stores, for at most `seconds`. Copies in flight get GRACE_S
        seconds more, because their memory cannot be freed before they end.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            if self._closed:
                return
            self._closed = True
            why = "is closed before this was done"
            self._drop(lambda each: each.kind is TransferKind.LOAD, why)
            self._ended.wait_for(lambda: not self._storing(), max(0.0, seconds))
            self._drop(lambda each: True, why)
        ended = self._end_threads(deadline)
        for staged in list(self._staged.values()):
            self._end(staged, TransferResult(staged.transfer.id, False, error=f"tier {why}"))
        self._ram.close()
        for removal, _ in self._removals:
            self._refuse(removal, why, Fault.NONE)
        if ended:
            for slots in self._pinned:
                slots.close()
        else:
            left = sum(slots.leave_behind() for slots in self._pinned)
            log.error(
                "copies of KV blocks hang in the GPU's driver: %d bytes of pinned memory are kept "
                "until the process ends",
                left,
            )

    def _end_threads(self, deadline: float) -> bool:
        """Stop all threads. True if no copy is left in flight."""
        grace = max(deadline, time.monotonic()) + GRACE_S
        ended = [loads.close(grace) for loads in self._direct.values()]
        ended.append(self._lanes.outward.end(grace))
        self._native.close(max(0.0, deadline - time.monotonic()))
        # The sentinel transfer is answered last, and its answer ends the answer thread.
        self._native.submit(Transfer(LAST, TransferKind.PROBE, RAM))
        self._taking_in.join(max(0.0, grace - time.monotonic()))
        ended.append(self._lanes.inward.end(grace))
        return all(ended) and not self._taking_in.is_alive()

    def _storing(self) -> bool:
        kinds = (staged.transfer.kind for staged in self._staged.values())
        return bool(self._new_stores) or TransferKind.STORE in kinds

    # Called with the lock held --------------------------------------------------------------------

    def _wait_for_chunk(self, transfer: Transfer) -> None:
        wrong = self._wrong(transfer)
        if wrong:
            self._refuse(transfer, wrong)
            return
        self._asked[transfer.id] = time.monotonic()
        if transfer.kind is TransferKind.STORE:
            self._new_stores.add(transfer.id)
        chunks = self._chunks[transfer.tier - 1]
        chunks.wait(transfer)
        self._begin(chunks)

    def _wrong(self, transfer: Transfer) -> str:
        """Reason why a transfer is invalid and cannot get a staging chunk; empty for a valid
        transfer.
        """
        known, groups, count = len(self._chunks), len(self._staging.groups), len(transfer.blocks)
        if not 1 <= transfer.tier <= known:
            return f"{transfer.tier} is no chunk tier: those are 1..={known}"
        most = self._chunks[transfer.tier - 1].blocks * groups
        if not 0 < count <= most or count % groups:
            return f"{transfer.tier}: {count} blocks of {groups} KV groups, not 1 to {most}"
        return ""

    def _begin(self, chunks: Chunks) -> None:
        while found := chunks.next():
            transfer, chunk = found
            used = chunk[: len(transfer.blocks) // len(self._staging.groups)]
            asked = self._asked.pop(transfer.id)
            staged = Staged(transfer, chunk, used, asked)
            self._staged[transfer.id] = staged
            if transfer.kind is TransferKind.STORE:
                self._lanes.outward.submit(partial(self._copy_out, staged), _nothing)
            else:
                staged.waited = time.monotonic() - asked
                self._native.submit(staged.in_staging())

    def _begin_removals(self) -> None:
        """Submit each removal once all earlier stores are submitted. The native mover keeps the
        order of submission, so the removal also removes what these stores wrote.
        """
        waiting = []
        for removal, stores in self._removals:
            stores &= self._new_stores
            if stores:
                waiting.append((removal, stores))
            else:
                self._native.submit(removal)
        self._removals = waiting

    def _drop(self, unwanted: Callable[[Transfer], bool], why: str) -> None:
        for chunks in self._chunks:
            dropped = chunks.drop(unwanted)
            for transfer in dropped:
                del self._asked[transfer.id]
                self._refuse(transfer, why, Fault.NONE)
            self._known(transfer.id for transfer in dropped)

    def _known(self, stores: Iterable[int]) -> None:
        self._new_stores.difference_update(stores)
        self._begin_removals()

    def _refuse(self, transfer: Transfer, why: str, fault: Fault = Fault.FAILED) -> None:
        error = why and f"tier {why}"
        self._answers.put(TransferResult(transfer.id, False, error=error, fault=fault))

    # Run on threads -------------------------------------------------------------------------------

    def _copy_out(self, staged: Staged) -> None:
        staged.waited = time.monotonic() - staged.asked
        pairs = self._staging.pairs(staged.transfer, staged.slots)
        staged.copied = self._copies.to_host([(slot, block) for block, slot in pairs]).result()
        with self._lock:
            if staged.transfer.id in self._staged:
                self._native.submit(staged.in_staging())
                self._known([staged.transfer.id])

    def _copy_in(self, staged: Staged, moved: TransferResult) -> None:
        pairs = self._staging.pairs(staged.transfer, staged.slots)
        staged.copied = self._copies.to_device(pairs).result()
        self._end(staged, moved)

    def _take_in(self) -> None:
        """Main loop of the answer thread: take the native mover's answers until the one with id
        LAST.
        """
        try:
            while True:
                for moved in self._native.take(WAIT_S):
                    if moved.id == LAST:
                        return
                    self._moved(moved)
        except Exception as error:  # noqa: BLE001 - the engine gets any error
            self._answers.put(error)

    def _moved(self, moved: TransferResult) -> None:
        with self._lock:
            staged = self._staged.get(moved.id)
        if staged is None:
            self._answers.put(moved)
        elif moved.done and staged.transfer.kind is TransferKind.LOAD:
            self._lanes.inward.submit(partial(self._copy_in, staged, moved), _nothing)
        else:
            self._end(staged, moved)

    def _end(self, staged: Staged, moved: TransferResult) -> None:
        """Free the staging chunk and answer the transfer. Does nothing if the transfer has been
        answered: its copy may end after `close` has answered it.
        """
        with self._lock:
            if self._staged.pop(staged.transfer.id, None) is None:
                return
            chunks = self._chunks[staged.transfer.tier - 1]
            chunks.give_back(staged.chunk)
            self._begin(chunks)
            self._ended.notify_all()
        seconds, waited = moved.seconds + staged.copied, moved.waited + staged.waited
        self._answers.put(replace(moved, seconds=seconds, waited=waited))


def _nothing() -> None:
    """No-op: `close` answers staged transfers after all threads have ended."""
