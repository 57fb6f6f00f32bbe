"""KV transfers in flight, in the engine. Each holds its blocks, calls back when it ends, and
reports its outcome to the circuit breaker of its tier.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.plan import NO_BLOCK
from penstock.core.transfer import KEY_BYTES, RAM, Fault, Transfer, TransferKind, TransferResult
from penstock.kv.events import KvEvents
from penstock.kv.pool import BlockPool
from penstock.kv.tiers.breaker import BreakerState, CircuitBreaker
from penstock.kv.tiers.contract import Blocks, Shape, TransferExecutor
from penstock.kv.tiers.rates import Rates
from penstock.kv.tiers.stats import Stats

if TYPE_CHECKING:
    from penstock._native import TierIndex

POLL, POLL_LATER, OFTEN = 0.0005, 0.01, 400
"""Seconds between polls for results: POLL at first, POLL_LATER after OFTEN polls without a
result.
"""
STALL = 5.0
"""Seconds after which a store or a probe without an answer counts as stalled."""

Done = Callable[[TransferResult], None]

log = logging.getLogger("penstock.kv.tiers")


class _Open(NamedTuple):
    kind: TransferKind
    tier: int
    blocks: Blocks
    done: Done
    limit: float
    """Seconds after which the transfer counts as stalled."""


class Transfers:
    def __init__(
        self,
        pools: Sequence[BlockPool],
        executor: TransferExecutor,
        breakers: Sequence[CircuitBreaker],
        clock: Callable[[], float],
    ) -> None:
        """`breakers` has one for each tier that stores chunks, in order."""
        self._pools = pools
        self._executor = executor
        self._breakers = breakers
        self._clock = clock
        self._open: dict[int, _Open] = {}
        self._due: dict[int, float] = {}
        """For each transfer that has not stalled, by id: clock time at which it will count as
        stalled.
        """
        self.stalled: dict[int, float] = {}
        """For each stalled transfer that is still unanswered, by id: clock time at which it
        stalled.
        """
        self._quarantined: set[int] = set()
        """Tiers for which a quarantined chunk was logged. Further quarantined chunks are only
        counted.
        """
        self.on_left: Callable[[int, bytes], None] = lambda tier, key: None
        """Called with a tier and the digest of a chunk that has left it."""
        self._last_id = 0
        self._in_vain = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def skipped(self) -> set[int]:
        """Numbers of the tiers whose breaker is not closed. No request may depend on them."""
        return self._in_state(BreakerState.OPEN, BreakerState.HALF_OPEN)

    @property
    def refused(self) -> set[int]:
        """Numbers of the tiers whose breaker is open. Not even a trial transfer may start there."""
        return self._in_state(BreakerState.OPEN)

    def _in_state(self, *states: BreakerState) -> set[int]:
        return {tier for tier, each in enumerate(self._breakers, start=1) if each.state in states}

    def admits(self, tier: int) -> bool:
        """Whether a load, store or probe of the tier may start now."""
        return tier == RAM or self._breakers[tier - 1].admits

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
        limit: float = STALL,
    ) -> int:
        """Start a transfer and return its id. Each block is referenced until the transfer is
        answered; then `poll` calls `done`. The breaker of a tier other than RAM must admit the
        transfer. A transfer that is not answered within `limit` seconds counts as stalled, unless
        it stores in RAM.
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
        self._open[transfer.id] = _Open(kind, tier, held, done, limit)
        if tier != RAM:
            self._breakers[tier - 1].began(transfer.id)
        if tier != RAM or kind is TransferKind.LOAD:
            self._due[transfer.id] = self._clock() + limit
        self._executor.transfer(transfer)
        return transfer.id

    def cancel(self, ids: Sequence[int]) -> None:
        """Cancel transfers. A transfer that has not started is answered as not done."""
        if ids:
            self._executor.transfer(Transfer(0, TransferKind.CANCEL, ids=array("q", ids)))

    @property
    def next_poll(self) -> float:
        """Seconds until the next call of `poll` is worthwhile."""
        return POLL if self._in_vain < OFTEN else POLL_LATER

    def poll(self) -> None:
        """Handle the results of transfers that have ended: release their blocks, inform their
        breakers, call their `done`. Then mark stalled transfers, and cancel those of tiers whose
        breaker has opened.
        """
        skipped = self.skipped
        ended = self._executor.moved()
        self._in_vain = 0 if ended else self._in_vain + 1
        for moved in ended:
            each = self._open.pop(moved.id)
            self._due.pop(moved.id, None)
            self.stalled.pop(moved.id, None)
            for pool, group in zip(self._pools, each.blocks, strict=False):
                pool.release(group)
            if each.tier != RAM:
                self._judge(each, moved)
            for at in range(0, len(moved.left), KEY_BYTES):
                self.on_left(each.tier, moved.left[at : at + KEY_BYTES])
            each.done(moved)
        self._find_stalled()
        opened = self.skipped - skipped
        self.cancel([number for number, each in self._open.items() if each.tier in opened])

    def _judge(self, each: _Open, moved: TransferResult) -> None:
        """Report the outcome to the tier's breaker. A successful probe counts as inconclusive,
        because it does not prove that the tier can move bytes.
        """
        breaker = self._breakers[each.tier - 1]
        if moved.fault is Fault.FAILED:
            breaker.failed(moved.id, moved.error)
        elif moved.done and each.kind is not TransferKind.PROBE:
            breaker.succeeded(moved.id)
        else:
            breaker.inconclusive(moved.id)
        if moved.fault is Fault.DAMAGED and each.tier not in self._quarantined:
            self._quarantined.add(each.tier)
            log.warning("KV tier: %s; further ones are only counted in /metrics", moved.error)

    def _find_stalled(self) -> None:
        now = self._clock()
        late = [number for number, due in self._due.items() if now >= due]
        for number in late:
            del self._due[number]
            each = self._open[number]
            if each.tier != RAM:
                self._breakers[each.tier - 1].stalled(number, each.limit)
        self.stalled.update(dict.fromkeys(late, now))
        self.cancel(late)

    @property
    def stalled_for(self) -> float:
        """Seconds for which the oldest stalled load has held its blocks since it stalled; 0 if none
        is stalled.
        """
        loads = (
            at
            for number, at in self.stalled.items()
            if self._open[number].kind is TransferKind.LOAD
        )
        return self._clock() - min(loads, default=self._clock())

    def tables(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Blocks that transfers hold, as (group, blocks), for the audit of the pools."""
        return chain.from_iterable(enumerate(each.blocks) for each in self._open.values())


@dataclass(frozen=True, slots=True)
class TierContext:
    """Objects shared by lookup, loads and write-behind."""

    pools: Sequence[BlockPool]
    """One pool for each KV group."""
    transfers: Transfers
    index: TierIndex | None
    """Index of the RAM tier; None without one."""
    shape: Shape
    rates: Rates
    stats: Stats
    clock: Callable[[], float]
    events: KvEvents | None
