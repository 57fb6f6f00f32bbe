"""The engine's view of the KV tiers (slower storage behind the pool): decides what to load and what
to store. The ranks' movers move the bytes.
"""

from penstock.kv.tiers.breaker import CircuitBreaker
from penstock.kv.tiers.cache import TierCache
from penstock.kv.tiers.contract import Shape, TransferExecutor
from penstock.kv.tiers.load import PrefixLoad
from penstock.kv.tiers.rates import Rates
from penstock.kv.tiers.stats import Stats, TierStats
from penstock.kv.tiers.tiers import Tiers
from penstock.kv.tiers.write_behind import WriteBehind

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
