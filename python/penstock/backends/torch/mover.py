"""The RAM tier: blocks between the pools and host memory, by copies in the order of the steps."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence

import torch

from penstock.backends.torch.device import Device, Done
from penstock.backends.torch.pool import Pool
from penstock.core import PenstockError
from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import RAM, Fault, Moved, Transfer, TransferKind


class RamMover:
    """Slots of host memory, each a block of every KV group; pinned where a GPU reads them.

    Copies go through the stream of the steps: a plan in flight that still writes to a block, of a
    sequence that has ended, is done before the block is loaded.
    """

    def __init__(self, pools: Sequence[Pool], slots: int, device: Device) -> None:
        pinned = device.torch.type == "cuda"
        self._pools, self._device = pools, device
        self._in_flight: deque[tuple[Transfer, Done | None, int]] = deque()
        self._lock = threading.Lock()
        try:
            self._slots = [
                torch.empty(slots, *pool.layout.shape, dtype=pool.layout.dtype, pin_memory=pinned)
                for pool in pools
            ]
        except RuntimeError as error:
            raise PenstockError(f"--kv-tier ram: {str(error).splitlines()[0]}") from error

    def submit(self, transfer: Transfer) -> None:
        if transfer.kind is TransferKind.CANCEL:
            return  # What was submitted has begun.
        done, size = None, 0
        if transfer.tier == RAM and transfer.kind in (TransferKind.LOAD, TransferKind.STORE):
            copies = self._copies(transfer)
            size = sum(self._pools[group].layout.block_bytes for group, _, _ in copies)
            loads = transfer.kind is TransferKind.LOAD
            done = self._device.start(lambda: self._copy(copies, loads))
        with self._lock:
            self._in_flight.append((transfer, done, size))

    def take(self, timeout: float = 0.0) -> list[Moved]:
        found: list[Moved] = []
        while self._in_flight:
            transfer, done, size = self._in_flight[0]
            try:
                if done is not None:
                    done.result(0.0 if found else timeout)
            except TimeoutError:
                break
            with self._lock:
                self._in_flight.popleft()
            found.append(_answer(transfer, done, size))
        return found

    def report(self) -> str:
        return json.dumps({"tiers": []})

    def close(self, seconds: float) -> None:
        """Copies end by themselves: the device is closed after them."""

    def _copies(self, transfer: Transfer) -> list[tuple[int, int, int]]:
        """Group, block and slot of each block that is moved."""
        count = len(transfer.slots)
        return [
            (at // count, block, transfer.slots[at % count])
            for at, block in enumerate(transfer.blocks)
            if block != NO_BLOCK
        ]

    def _copy(self, copies: Sequence[tuple[int, int, int]], loads: bool) -> None:
        for group, block, slot in copies:
            inside, outside = self._pools[group].blocks[block], self._slots[group][slot]
            target, source = (inside, outside) if loads else (outside, inside)
            target.copy_(source, non_blocking=True)


def _answer(transfer: Transfer, done: Done | None, size: int) -> Moved:
    """There are no chunk tiers: they have nothing, and nothing has to be removed from them."""
    if done is not None:
        return Moved(transfer.id, True, bytes=size, seconds=done.seconds)
    if transfer.kind is TransferKind.PROBE:
        return Moved(transfer.id, True, found=bytes(len(transfer.counts)))
    removed = transfer.kind in (TransferKind.REMOVE, TransferKind.CLEAR)
    fault = Fault.NONE if removed else Fault.FAILED
    return Moved(transfer.id, removed, error="" if removed else "no such tier", fault=fault)
