"""No tiers behind the pool."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from penstock.core import StepPlan, TierKind, TierStats, TierTokens
from penstock.kv_tiers.counts import Counts
from penstock.kv_tiers.fetch import Fetch
from penstock.kv_tiers.ram import RamReport

NOTHING = Fetch([], 1, 0.0)
"""Of a sequence that has not asked yet, or has nobody to ask."""


NO_PINS = "pinned prefixes are kept in the RAM tier, and there is none: --kv-tier ram:SIZE"


class NoTiers:
    """Does what `TierCache` does when it has nothing."""

    present = False
    busy = False
    parking = False
    look = math.inf

    def __init__(self) -> None:
        self.counts = Counts([TierStats("ram", TierKind.RAM)])

    def tables(self) -> tuple[array[int], ...]:
        return ()

    def ask(self, digests: list[bytes], hits: int) -> Fetch:
        return NOTHING

    def settled(self, fetch: Fetch) -> bool:
        return True

    def choose(self, fetch: Fetch, hits: int) -> int:
        return hits

    def begin(self, fetch: Fetch, blocks: array[int]) -> None: ...

    def computing(self, fetch: Fetch, end: int) -> None: ...

    def advance(self, fetch: Fetch, num_computed: int, known: int) -> int:
        return num_computed

    def tokens(self, fetch: Fetch) -> TierTokens:
        return TierTokens()

    def leave(self, fetch: Fetch) -> None: ...

    def published(
        self, digests: list[bytes], first: int, blocks: array[int], prompt_blocks: int
    ) -> None: ...

    def park(self, digests: list[bytes], blocks: Sequence[int]) -> None: ...

    def ended(self, digests: list[bytes], end: int) -> None: ...

    def turn(self) -> None: ...

    def ram(self) -> RamReport:
        return RamReport()

    def remove(self, digests: list[bytes]) -> int:
        return 0

    def clear(self, group: bytes = b"") -> int:
        return 0

    def pin(self, digests: list[bytes]) -> int:
        raise ValueError(NO_PINS)

    def unpin(self, digests: list[bytes]) -> None: ...

    def observed(self, plan: StepPlan, seconds: float) -> None: ...
