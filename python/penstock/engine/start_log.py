"""Log lines of the start-up: the model with its precision, and memory with its tiers."""

from __future__ import annotations

from penstock.config import CacheConfig, TierConfig, TiersConfig
from penstock.core import WorkerFacts, shortened
from penstock.core.progress import size
from penstock.engine.sizing import KvPlan
from penstock.model.sharding import Grid

MOST_NAME = 80


def model_name(name: str) -> str:
    """The name of a model's file or directory, on one line of bounded length."""
    return shortened("".join(c if c.isprintable() else "?" for c in name), MOST_NAME)


def precision(facts: WorkerFacts, grid: Grid) -> str:
    """Number formats of a model's computation, from the combined facts of all ranks."""
    own = facts.numerics
    words = [
        f"weights {'+'.join(own.weights)}, {size(facts.weights_bytes)}",
        f"activations {own.activations}",
        f"KV {own.kv}",
        f"{facts.device} on {facts.threads} thread{'s' if facts.threads > 1 else ''}",
    ]
    if grid.size > 1:
        words.append(f"{grid.tp} x {grid.pp} ranks (tensor x pipeline)")
    return "; ".join(words)


def memory(kv: KvPlan, cache: CacheConfig, facts: WorkerFacts, tiers: TiersConfig) -> str:
    """The KV pool in tokens and bytes, and the tiers behind it."""
    tokens = kv.num_blocks * cache.block_size
    pool = f"KV of {tokens:,} tokens in {size(kv.bytes)} of {facts.numerics.kv}"
    if not tiers.tiers:
        return f"{pool}, no tiers"
    ordered = [*([tiers.ram] if tiers.ram else []), *tiers.named]
    return f"{pool}; tiers {', '.join(map(_tier, ordered))}"


def _tier(tier: TierConfig) -> str:
    return f"{tier.name} {size(tier.size_bytes)}" if tier.size_bytes else tier.name
