"""KV beyond the pool: what to load, what to store. Moves no bytes."""

from penstock.kv_tiers.breaker import CircuitBreaker
from penstock.kv_tiers.cache import TierCache
from penstock.kv_tiers.contract import Shape, Tiers, TransferExecutor
from penstock.kv_tiers.load import PrefixLoad
from penstock.kv_tiers.rates import Rates
from penstock.kv_tiers.stats import Stats, TierStats
from penstock.kv_tiers.write_behind import WriteBehind

__all__ = [
    "CircuitBreaker",
    "PrefixLoad",
    "Rates",
    "Shape",
    "Stats",
    "TierCache",
    "TierStats",
    "Tiers",
    "TransferExecutor",
    "WriteBehind",
]
