"""KV tiers behind the pool, as the engine sees them: decides what to load and what to store. Moves
no bytes: the ranks' movers do.
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
