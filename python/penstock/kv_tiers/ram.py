"""What the RAM tier's index says of itself, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.kv_tiers.contract import Index


@dataclass(frozen=True, slots=True)
class RamReport:
    slots: int = 0
    used_bytes: int = 0
    evicted: int = 0
    pinned: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Bytes of cache, and the part of looked-up blocks that would be computed with so much."""


def ram_report(index: Index | None, block_bytes: int) -> RamReport:
    if index is None:
        return RamReport()
    stats = index.stats()
    return RamReport(
        slots=stats["slots"],
        used_bytes=stats["used"] * block_bytes,
        evicted=stats["evictions"],
        pinned=stats["pinned"],
        curve=[(int(slots * block_bytes), 1.0 - hits) for slots, hits in index.curve()],
    )
