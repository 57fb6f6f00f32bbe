"""The null object of an engine without tiers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from penstock.kv_tiers.contract import Blocks
from penstock.kv_tiers.load import PrefixLoad


class NoTiers:
    """Does what `TierCache` does when it has nothing."""

    busy = False
    offloading = False
    next_poll = math.inf

    def lookup(self, load: PrefixLoad, digests: list[bytes], hits: int) -> int:
        return hits

    def start(self, load: PrefixLoad, blocks: Sequence[array[int]]) -> None: ...

    def limit(self, load: PrefixLoad, end: int) -> int:
        return end

    def poll(self) -> None: ...

    def published(
        self, digests: list[bytes], end: int, blocks: Blocks, prompt_blocks: int
    ) -> None: ...

    def released(
        self, load: PrefixLoad, digests: list[bytes], end: int, offload: Blocks = ()
    ) -> None: ...

    def tables(self) -> tuple[tuple[int, Sequence[int]], ...]:
        return ()
