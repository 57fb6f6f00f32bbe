"""The KV tiers as the scheduler sees them, above `contract`, which movers implement."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

from penstock.kv.tiers.contract import Blocks
from penstock.kv.tiers.load import PrefixLoad


class Tiers:
    """The tiers as seen by the scheduler. This base class stands for an engine without tiers. No
    method blocks or moves bytes.

        lookup -> start -> limit and `PrefixLoad.advance`, step by step -> released
    """

    @property
    def busy(self) -> bool:
        """Whether transfers are queued or in flight."""
        return False

    @property
    def offloading(self) -> bool:
        """Whether offloads in flight will free blocks."""
        return False

    @property
    def stalled_for(self) -> float:
        """Seconds for which a stalled load has held blocks; 0 without one."""
        return 0.0

    @property
    def next_poll(self) -> float:
        """Seconds until the next poll, if there is nothing else to do."""
        return math.inf

    def lookup(self, load: PrefixLoad, digests: list[bytes], hits: int) -> int | None:
        """Plan the load of a prompt whose first `hits` blocks are in the pool. Returns how many of
        these are used, or None while probes are pending: call again after a poll.
        """
        return hits

    def start(self, load: PrefixLoad, blocks: Sequence[array[int]]) -> None:
        """Start the planned load into the sequence's block tables."""

    def limit(self, load: PrefixLoad, end: int) -> int:
        """Position, at most `end`, up to which tokens may be computed now. Segments before it that
        have not started are dropped and computed.
        """
        return end

    def poll(self) -> None:
        """Handle the transfers that have ended, and start others."""

    def published(self, digests: list[bytes], end: int, blocks: Blocks, prompt_blocks: int) -> None:
        """Store the blocks of a sequence up to `end`, which are computed and published. Its prompt
        has `prompt_blocks` full blocks.
        """

    def released(
        self, load: PrefixLoad, digests: list[bytes], end: int, offload: Blocks = ()
    ) -> None:
        """End the load of a sequence that releases its blocks. `end` is the number of published
        blocks; 0 if it had none. The blocks `offload` of a preempted sequence, up to `end`, are
        stored in RAM unconditionally.
        """

    def tables(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Blocks that transfers hold, as (group, blocks), for the audit of the pools."""
        return ()
