"""Opens the tiers of the configuration on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.config import EngineConfig, TiersConfig
from penstock.core import InvalidValueError, TierKind, TierKinds, TierStats
from penstock.core.transfer import OpenTiers
from penstock.engine.sizing import KvPlan
from penstock.executor import TransferExecutor
from penstock.kv import BlockPool
from penstock.kv_tiers import NoTiers, Shape, TierCache, Tiers

KINDS = {"disk": TierKind.DISK, "redis": TierKind.REMOTE, "object": TierKind.REMOTE}
FLUSH_S, CLOSE_S = 8.0, 4.0
"""What waits to be stored gets at the end, and then what ranks have begun. The front door waits 15
s.
"""


def open_tiers(
    config: EngineConfig,
    executor: TransferExecutor,
    kv: KvPlan,
    pool: BlockPool,
    identity: bytes,
    clock: Callable[[], float],
) -> Tiers:
    """PenstockError says which tier cannot be opened, why, and the remedy."""
    settings = config.tiers
    if not settings.tiers:
        return NoTiers()
    slots = _ram_slots(config, kv.block_bytes)
    executor.open_tiers(OpenTiers(identity.hex(), slots, CLOSE_S))
    from penstock._native import TierIndex

    shape = Shape(
        block_size=config.cache.block_size,
        block_bytes=kv.block_bytes,
        per_chunk=settings.chunk_tokens // config.cache.block_size,
        step_tokens=config.scheduler.max_num_batched_tokens,
    )
    quota = settings.ram.quota if settings.ram else 1.0
    index = TierIndex(slots, quota) if slots else None
    stats = [TierStats("ram", TierKind.RAM, capacity_bytes=slots * kv.block_bytes)]
    stats += [
        TierStats(each.name, KINDS[each.kind], capacity_bytes=each.size_bytes or 0)
        for each in settings.named
    ]
    return TierCache(pool, executor, index, shape, stats, clock)


def flush(tiers: Tiers) -> None:
    """What waits to be stored is stored, as far as there is time for it."""
    deadline = time.monotonic() + FLUSH_S
    tiers.turn()
    while tiers.busy and time.monotonic() < deadline:
        time.sleep(tiers.look)
        tiers.turn()


def kinds(settings: TiersConfig) -> TierKinds:
    """Which kinds of tiers stand behind the pool."""
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
