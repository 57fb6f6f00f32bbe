"""Transfers under way: their blocks belong to nobody else, and whoever began one hears of its end."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.core.transfer import Moved, Transfer, TransferKind
from penstock.kv.pool import BlockPool
from penstock.kv_tiers.contract import Carrier

LOOK, LOOK_LATER, OFTEN = 0.0005, 0.01, 400
"""Seconds between looks, and what they become after so many in vain: a tier that stands still is
cheap.
"""

Done = Callable[[Moved], None]


@dataclass(frozen=True, slots=True)
class Open:
    blocks: array[int]
    done: Done


class Transfers:
    def __init__(self, pool: BlockPool, carrier: Carrier) -> None:
        self._pool = pool
        self._carrier = carrier
        self._open: dict[int, Open] = {}
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
        blocks: Sequence[int] = (),
        slots: Sequence[int] = (),
        keys: bytes = b"",
        counts: Sequence[int] = (),
        parent: bytes = b"",
    ) -> int:
        """Each block gets a reference until the transfer is answered; `done` is called by `take_in`
        then. The transfer's id.
        """
        self._last_id += 1
        self._in_vain = 0
        transfer = Transfer(
            self._last_id,
            kind,
            tier,
            array("i", blocks),
            array("i", slots),
            keys,
            array("i", counts),
            parent=parent,
        )
        for block in transfer.blocks:
            self._pool.share(block)
        self._open[transfer.id] = Open(transfer.blocks, done)
        self._carrier.transfer(transfer)
        return transfer.id

    def cancel(self, ids: Sequence[int]) -> None:
        """Those that have not begun are answered as not done."""
        if ids:
            self._carrier.transfer(Transfer(0, TransferKind.CANCEL, ids=array("q", ids)))

    @property
    def look(self) -> float:
        """Seconds until something may have ended; more when nothing has for long."""
        return LOOK if self._in_vain < OFTEN else LOOK_LATER

    def take_in(self) -> None:
        """Hear of what has ended."""
        ended = self._carrier.moved()
        self._in_vain = 0 if ended else self._in_vain + 1
        for moved in ended:
            each = self._open.pop(moved.id)
            self._pool.release(each.blocks)
            each.done(moved)

    def tables(self) -> Iterator[array[int]]:
        """Blocks that transfers hold, for the audit of the pool."""
        return (each.blocks for each in self._open.values())
