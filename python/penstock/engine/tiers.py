"""Opens the configured tiers on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.config import EngineConfig, TiersConfig
from penstock.core import InvalidValueError, TierKind, TierKinds
from penstock.core.transfer import OpenTiers
from penstock.engine.sizing import KvPlan
from penstock.executor import TransferExecutor
from penstock.kv import KvCache
from penstock.kv.tiers import (
    CircuitBreaker,
    Rates,
    Shape,
    Stats,
    TierCache,
    Tiers,
    TierStats,
    WriteBehind,
)

if TYPE_CHECKING:
    from penstock._native import TierIndex

KINDS = {"disk": TierKind.DISK, "redis": TierKind.REMOTE, "object": TierKind.REMOTE}
FLUSH_S, CLOSE_S = 8.0, 4.0
"""Maximum seconds at shutdown for queued stores, and then for stores in flight. The API server
allows 15 s in total.
"""


@dataclass(frozen=True, slots=True)
class OpenedTiers:
    """The tiers as used by the scheduler, and the parts that administration needs."""

    tiers: Tiers = field(default_factory=Tiers)
    write_behind: WriteBehind | None = None
    index: TierIndex | None = None
    rates: Rates = field(default_factory=Rates)
    stats: Stats = field(default_factory=Stats)
    breakers: Sequence[CircuitBreaker] = ()
    block_bytes: int = 0

    def report(self, movers: Iterable[str]) -> dict[str, object]:
        """State and counters as a JSON object. `movers` has each rank's report on its tiers, as
        JSON.
        """
        return self.stats.report(self.index, self.block_bytes, self.breakers, movers)


def open_tiers(
    config: EngineConfig,
    executor: TransferExecutor,
    kv: KvPlan,
    cache: KvCache,
    identity: bytes,
    clock: Callable[[], float],
) -> OpenedTiers:
    """Open the tiers on all ranks. Raises PenstockError, which names the tier that cannot be
    opened, and the remedy.
    """
    settings = config.tiers
    if not settings.tiers:
        return OpenedTiers()
    slots = _ram_slots(config, kv.block_bytes)
    executor.open_tiers(OpenTiers(identity.hex(), slots, CLOSE_S))
    from penstock._native import TierIndex

    shape = Shape(
        block_size=config.cache.block_size,
        block_bytes=kv.growth_bytes,
        per_chunk=settings.chunk_tokens // config.cache.block_size,
        step_tokens=config.scheduler.max_num_batched_tokens,
        window_bytes=kv.window_bytes,
    )
    quota = settings.ram.quota if settings.ram else 1.0
    index = TierIndex(slots, quota) if slots else None
    counters = [TierStats("ram", TierKind.RAM, capacity_bytes=slots * kv.block_bytes)]
    counters += [
        TierStats(each.name, KINDS[each.kind], capacity_bytes=each.size_bytes or 0)
        for each in settings.named
    ]
    stats, rates = Stats(counters), Rates(each.kind for each in counters)
    breakers = [CircuitBreaker(each.name, clock) for each in settings.named]
    pools, events = cache.pools, cache.events
    tiers = TierCache(pools, executor, index, shape, stats, rates, breakers, clock, events)
    return OpenedTiers(tiers, tiers.write_behind, index, rates, stats, breakers, kv.block_bytes)


def flush(tiers: Tiers) -> None:
    """Write the stores that are queued, for at most FLUSH_S seconds."""
    deadline = time.monotonic() + FLUSH_S
    tiers.poll()
    while tiers.busy and time.monotonic() < deadline:
        time.sleep(tiers.next_poll)
        tiers.poll()


def kinds(settings: TiersConfig) -> TierKinds:
    """Kinds of the configured tiers."""
    found = TierKinds.RAM if settings.ram else TierKinds.NONE
    for tier in settings.named:
        found |= TierKinds[KINDS[tier.kind].name]
    return found


def _ram_slots(config: EngineConfig, block_bytes: int) -> int:
    ram = config.tiers.ram
    if ram is None:
        return 0
    size = ram.size_bytes or 0
    if size < block_bytes:
        raise InvalidValueError("--kv-tier", f"ram:{size}", f"at least {block_bytes}, a KV block")
    return size // block_bytes
