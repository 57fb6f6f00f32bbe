"""What tiers hold and did, from the engine's counts and what the ranks' movers say."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy

from penstock.core import TierReport, TierState
from penstock.kv_tiers import Tiers

STATES = {"closed": TierState.SERVING, "open": TierState.SKIPPED, "half_open": TierState.TRYING}


def tier_report(tiers: Tiers, movers: Iterable[str]) -> TierReport:
    """Counters of several ranks are added; a tier is skipped when it is by one of them."""
    counts, ram = tiers.counts, tiers.ram()
    stats = deepcopy(list(counts.tiers))
    for text in movers:
        said = {each["name"]: each for each in json.loads(text).get("tiers", [])}
        for each in stats[1:]:
            rank = said.get(each.name, {})
            counters = rank.get("counters", {})
            each.evicted_chunks += counters.get("evicted_chunks", 0)
            each.quarantined_chunks += rank.get("damaged", 0)
            each.used_bytes = max(each.used_bytes, counters.get("used_bytes", 0))
            each.state = max(
                each.state, STATES.get(rank.get("breaker", "closed"), TierState.SERVING)
            )
    stats[0].used_bytes, stats[0].evicted_chunks = ram.used_bytes, ram.evicted
    return TierReport(
        tiers=stats if ram.slots else stats[1:],
        lookup_tokens=counts.lookup_tokens,
        decisions=counts.decisions,
        pinned_blocks=ram.pinned,
        miss_curve=ram.curve,
    )
