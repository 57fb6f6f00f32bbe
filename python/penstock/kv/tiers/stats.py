"""Counters of the tiers, and the JSON document that reports them."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core import TierKind
from penstock.core.transfer import Fault, TransferResult
from penstock.kv.tiers.breaker import BreakerState, CircuitBreaker

if TYPE_CHECKING:
    from penstock._native import TierIndex

DURATION_BOUNDS = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
"""Inclusive upper bounds of the buckets of `Durations`, in seconds."""
STATES = {
    BreakerState.CLOSED: "serving",
    BreakerState.HALF_OPEN: "trying",
    BreakerState.OPEN: "skipped",
}
"""Names of the circuit breaker's states in the JSON document."""


@dataclass(slots=True)
class Durations:
    """Histogram of transfer times in seconds. The last bucket has no upper bound."""

    seconds: float = 0.0
    buckets: array[int] = field(
        default_factory=lambda: array("Q", bytes(8 * (len(DURATION_BOUNDS) + 1)))
    )

    def observe(self, seconds: float) -> None:
        self.seconds += seconds
        self.buckets[bisect_left(DURATION_BOUNDS, seconds)] += 1

    def report(self) -> dict[str, object]:
        count = sum(self.buckets)
        return {"count": count, "seconds": self.seconds, "buckets": list(self.buckets)}


@dataclass(slots=True)
class TierStats:
    """Counters of one tier since the start, summed over all ranks."""

    name: str
    """For example `ram` or `disk:/var/kv`."""
    kind: TierKind
    capacity_bytes: int = 0
    """Capacity in bytes; 0 if unbounded or unknown."""
    hits: int = 0
    """Chunks (blocks for RAM) that were looked up and found."""
    misses: int = 0
    hit_tokens: int = 0
    """Tokens that were loaded from the tier and used."""
    loaded_bytes: int = 0
    stored_bytes: int = 0
    errors: int = 0
    dropped_stores: int = 0
    """Chunks that were not stored because the tier was slow, full or skipped, or because its daily
    write budget was spent.
    """
    loads: Durations = field(default_factory=Durations)
    stores: Durations = field(default_factory=Durations)

    def loaded(self, moved: TransferResult) -> None:
        if moved.done:
            self.loaded_bytes += moved.bytes
            self.loads.observe(moved.seconds)
        elif moved.error:
            self.errors += 1
        else:
            self.misses += 1

    def stored(self, moved: TransferResult) -> None:
        if moved.done:
            self.stored_bytes += moved.bytes
            self.stores.observe(moved.seconds)
        elif moved.fault is Fault.FULL:
            self.dropped_stores += 1
        elif moved.error:
            self.errors += 1

    def report(
        self,
        ranks: Iterable[dict[str, object]],
        state: BreakerState = BreakerState.CLOSED,
    ) -> dict[str, object]:
        """The tier's entry in the JSON document. Evicted and quarantined chunks are added up over
        `ranks`; the bytes in use are the maximum over them.
        """
        evicted = quarantined = used = 0
        for rank in ranks:
            counters = rank.get("counters", {})
            assert isinstance(counters, dict)
            evicted += counters.get("evicted_chunks", 0)
            used = max(used, counters.get("used_bytes", 0))
            quarantined += int(str(rank.get("damaged", 0)))
        return {
            "name": self.name,
            "kind": self.kind.name.lower(),
            "state": STATES[state],
            "used_bytes": used,
            "capacity_bytes": self.capacity_bytes or None,
            "hits": self.hits,
            "misses": self.misses,
            "hit_ratio": _ratio(self.hits, self.hits + self.misses),
            "hit_tokens": self.hit_tokens,
            "loaded_bytes": self.loaded_bytes,
            "stored_bytes": self.stored_bytes,
            "loads": self.loads.report(),
            "stores": self.stores.report(),
            "errors": self.errors,
            "evicted_chunks": evicted,
            "quarantined_chunks": quarantined,
            "dropped_stores": self.dropped_stores,
        }


@dataclass(slots=True)
class Decisions:
    """Number of requests whose prefix was partly in a tier, by the decision to load or compute."""

    load: int = 0
    compute: int = 0
    both: int = 0
    """Some segments were loaded. Others were computed, or loaded while the tokens before them were
    computed.
    """


@dataclass(slots=True)
class Stats:
    """`tiers` is indexed by `Transfer.tier`: RAM (even if not configured), then the tiers that
    store chunks.
    """

    tiers: Sequence[TierStats] = ()
    decisions: Decisions = field(default_factory=Decisions)
    lookup_tokens: int = 0
    """Prompt tokens that were not in the pool and were looked up in the tiers."""

    def report(
        self,
        index: TierIndex | None,
        block_bytes: int,
        breakers: Iterable[CircuitBreaker],
        movers: Iterable[str],
    ) -> dict[str, object]:
        """Contents and counters of the tiers, as a JSON object. `breakers` has one for each chunk
        tier; `movers` has one report for each rank.
        """
        ranks = [{each["name"]: each for each in json.loads(text)["tiers"]} for text in movers]
        tiers = [
            tier.report([rank[tier.name] for rank in ranks if tier.name in rank], breaker.state)
            for tier, breaker in zip(self.tiers[1:], breakers, strict=True)
        ]
        pinned = 0
        if index is not None:
            slots = index.stats()
            pinned = slots["pinned"]
            ram = self.tiers[0].report(())
            ram |= {"used_bytes": slots["used"] * block_bytes, "evicted_chunks": slots["evictions"]}
            tiers.insert(0, ram)
        hits = sum(tier.hit_tokens for tier in self.tiers)
        decisions = self.decisions
        return {
            "lookup_tokens": self.lookup_tokens,
            "hit_tokens": hits,
            "hit_ratio": _ratio(hits, self.lookup_tokens),
            "decisions": {
                "load": decisions.load,
                "compute": decisions.compute,
                "both": decisions.both,
            },
            "pinned_blocks": pinned,
            "tiers": tiers,
        }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
