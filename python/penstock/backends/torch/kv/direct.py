"""Loads from a disk tier by GPUDirect Storage: data moves from files to the KV pools on the GPU
without passing through host memory. Checksums are computed on the GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.backends.torch.async_copy import Copies
from penstock.backends.torch.kv.copy_workers import Job, Workers
from penstock.backends.torch.kv.pool import Pool
from penstock.backends.torch.runtime import accelerated
from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import Fault, Transfer, TransferResult

if TYPE_CHECKING:
    from penstock.kv.gds import KvikioParts, Memory, Part

THREADS = 4
"""Number of chunks loaded concurrently."""


@dataclass(frozen=True, slots=True)
class Share:
    """The KV heads and layers that a rank stores of each block (docs/kv-format.md)."""

    heads: Sequence[int]
    """KV heads of the rank in the order in which a block has them, numbered over the
    whole model.
    """
    layers: Sequence[tuple[int, int]]
    """Half-open layer range of each KV group; layers are numbered group after group."""


class DirectLoads:
    def __init__(
        self,
        parts: KvikioParts,
        share: Share,
        pools: Sequence[Pool],
        copies: Copies,
        answer: Callable[[TransferResult | Exception], None],
    ) -> None:
        self._parts, self._share, self._pools = parts, share, pools
        self._copies, self._answer = copies, answer
        self._workers = Workers("kv-direct", THREADS, answer)
        self._lock = threading.Lock()
        self._open: dict[int, Job | None] = {}
        """Unanswered loads by transfer id, each with its job; None until the job is submitted to
        the workers.
        """
        for pool in pools:
            if pool.layout.block_bytes:
                # Compile the checksum kernel now. Otherwise compilation would make the first load
                # appear to stall.
                copies.crc64([_extent(pool, 0, 0)])

    def submit(self, transfer: Transfer) -> None:
        dropped = partial(self._answer_once, TransferResult(transfer.id, False))
        with self._lock:
            self._open[transfer.id] = None
        job = self._workers.submit(partial(self._run, transfer, time.monotonic()), dropped)
        with self._lock:
            if transfer.id in self._open:
                self._open[transfer.id] = job

    def cancel(self, ids: Iterable[int]) -> None:
        """Drop loads that have not started. Each dropped load is answered as not done."""
        with self._lock:
            jobs = [self._open.get(each) for each in ids]
        for job in jobs:
            if job is not None:
                self._workers.cancel(job)

    def close(self, deadline: float) -> bool:
        """Drop queued loads, and answer all unanswered ones as failed. Returns False if a started
        load still runs at `deadline` of the monotonic clock.
        """
        ended = self._workers.end(deadline)
        with self._lock:
            left = list(self._open)
        for each in left:
            self._answer_once(
                TransferResult(each, False, error="tier is closed before this was done")
            )
        return ended

    def _run(self, transfer: Transfer, asked: float) -> None:
        self._answer_once(self._moved(transfer, asked))

    def _answer_once(self, moved: TransferResult) -> None:
        with self._lock:
            known = moved.id in self._open
            self._open.pop(moved.id, None)
        if known:
            self._answer(moved)

    def _moved(self, transfer: Transfer, asked: float) -> TransferResult:
        from penstock.kv.gds import PartDamagedError, PartMissingError, PartsError

        began, size = time.monotonic(), 0
        moved = TransferResult(transfer.id, False, waited=began - asked)
        try:
            for part, extents in self._parts_of(transfer):
                self._load(part, extents)
                size += sum(extent.nbytes for extent in extents)
            moved.done, moved.bytes = True, size
        except PartMissingError:
            pass
        except PartDamagedError as error:
            moved.error, moved.fault = str(error), Fault.DAMAGED
        except PartsError as error:
            moved.error, moved.fault = str(error), Fault.FAILED
        moved.seconds = time.monotonic() - began
        return moved

    def _load(self, part: Part, extents: Sequence[Tensor]) -> None:
        memories = [_memory(extent) for extent in extents]
        self._parts.load(part, memories, lambda: self._copies.crc64(extents))

    def _parts_of(self, transfer: Transfer) -> Iterator[tuple[Part, list[Tensor]]]:
        """KV parts (one KV head of a chunk each) that have at least one requested block, and the
        memory in the pool that each fills.
        """
        from penstock.kv.gds import Part

        count = len(transfer.blocks) // len(self._pools)
        for group, pool in enumerate(self._pools):
            layers = self._share.layers[group]
            blocks = transfer.blocks[group * count : (group + 1) * count]
            if layers[0] == layers[1] or set(blocks) == {NO_BLOCK}:
                continue
            for at, head in enumerate(self._share.heads):
                extents = [_extent(pool, block, at) for block in blocks]
                yield Part(transfer.keys, count, head, layers), extents


def _extent(pool: Pool, block: int, head: int) -> Tensor:
    """Memory of a KV head (index on this rank) in a block of the pool. For NO_BLOCK (outside the
    window), scratch memory.
    """
    if block == NO_BLOCK:
        like = _extent(pool, 0, head)
        return torch.empty_like(like)
    place = pool.blocks[block]
    return place if pool.layout.latent else place[head]


def _memory(extent: Tensor) -> Memory:
    # Pass the memory as bytes, because the array interface that other libraries read has no bf16.
    whole = extent.view(-1).view(torch.uint8)
    return whole if accelerated(whole.device) else memoryview(whole.numpy())
