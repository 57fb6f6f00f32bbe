"""Transfers in flight: each holds its blocks, and calls back when it ends."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import Moved, Transfer, TransferKind
from penstock.kv.pool import BlockPool
from penstock.kv_tiers.contract import Blocks, TransferExecutor

POLL, POLL_LATER, OFTEN = 0.0005, 0.01, 400
"""Seconds between polls, and the seconds after so many polls in vain: a stalled tier is cheap."""

Done = Callable[[Moved], None]


class _Open(NamedTuple):
    blocks: Blocks
    done: Done


class Transfers:
    def __init__(self, pools: Sequence[BlockPool], executor: TransferExecutor) -> None:
        self._pools = pools
        self._executor = executor
        self._open: dict[int, _Open] = {}
        self._last_id = 0
        self._in_vain = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(
        self,
        kind: TransferKind,
        tier: int,
        done: Done,
        *,
        blocks: Blocks = (),
        slots: Sequence[int] = (),
        keys: bytes = b"",
        counts: Sequence[int] = (),
        parent: bytes = b"",
    ) -> int:
        """Start a transfer; its id. Each block gets a reference until the transfer is answered;
        then `poll` calls `done`.
        """
        self._last_id += 1
        self._in_vain = 0
        transfer = Transfer(
            self._last_id,
            kind,
            tier,
            array("i", chain.from_iterable(blocks)),
            array("i", slots),
            keys,
            array("i", counts),
            parent=parent,
        )
        held = [[block for block in group if block != NO_BLOCK] for group in blocks]
        for pool, group in zip(self._pools, held, strict=False):
            for block in group:
                pool.share(block)
        self._open[transfer.id] = _Open(held, done)
        self._executor.transfer(transfer)
        return transfer.id

    def cancel(self, ids: Sequence[int]) -> None:
        """Those that have not begun are answered as not done."""
        if ids:
            self._executor.transfer(Transfer(0, TransferKind.CANCEL, ids=array("q", ids)))

    @property
    def next_poll(self) -> float:
        """Seconds until something may have ended."""
        return POLL if self._in_vain < OFTEN else POLL_LATER

    def poll(self) -> None:
        """Take in what has ended."""
        ended = self._executor.moved()
        self._in_vain = 0 if ended else self._in_vain + 1
        for moved in ended:
            each = self._open.pop(moved.id)
            for pool, group in zip(self._pools, each.blocks, strict=False):
                pool.release(group)
            each.done(moved)

    def tables(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Blocks that transfers hold, as (group, blocks), for the audit of the pools."""
        return chain.from_iterable(enumerate(each.blocks) for each in self._open.values())
