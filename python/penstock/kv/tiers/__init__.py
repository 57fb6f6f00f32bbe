"""Where KV goes beyond the pool, and comes back from: what to load, what to store. Moves no bytes."""

from penstock.kv.tiers.cache import TierCache
from penstock.kv.tiers.contract import Carrier, Index
from penstock.kv.tiers.fetch import Fetch
from penstock.kv.tiers.none import NOTHING, NoTiers
from penstock.kv.tiers.shape import Shape

Tiers = TierCache | NoTiers

__all__ = ["NOTHING", "Carrier", "Fetch", "Index", "NoTiers", "Shape", "TierCache", "Tiers"]
