"""Where KV goes beyond the pool, and comes back from: what to load, what to store. Moves no bytes."""

from penstock.kv_tiers.cache import TierCache
from penstock.kv_tiers.contract import Carrier, Index
from penstock.kv_tiers.fetch import Fetch
from penstock.kv_tiers.none import NOTHING, NoTiers
from penstock.kv_tiers.shape import Shape

Tiers = TierCache | NoTiers

__all__ = ["NOTHING", "Carrier", "Fetch", "Index", "NoTiers", "Shape", "TierCache", "Tiers"]
