"""The interface of the KV tiers to the scheduler."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

from penstock.kv.tiers.contract import Blocks
from penstock.kv.tiers.load import PrefixLoad


class Tiers:
    """The scheduler's interface to the tiers. This base class is used by an engine without tiers;
    `TierCache` implements them. No method blocks or moves bytes. The calls for a sequence are, in
    this order:

        lookup -> start -> limit and `PrefixLoad.advance`, step by step -> released
    """

    @property
    def busy(self) -> bool:
        """Whether transfers are queued or in flight."""
        return False

    @property
    def offloading(self) -> bool:
        """Whether offloads (stores of preempted sequences in RAM) are in flight. They free blocks
        when they end.
        """
        return False

    @property
    def stalled_for(self) -> float:
        """Seconds for which the oldest stalled load has held its blocks since it stalled; 0 if none
        is stalled.
        """
        return 0.0

    @property
    def next_poll(self) -> float:
        """Seconds after which `poll` should be called again, if the engine has nothing
        else to do.
        """
        return math.inf

    def lookup(self, load: PrefixLoad, digests: list[bytes], hits: int) -> int | None:
        """Plan the load of a prompt whose first `hits` blocks are in the pool. Returns how many of
        these blocks to use. Returns None while probes are pending: call again after `poll`.
        """
        return hits

    def start(self, load: PrefixLoad, blocks: Sequence[array[int]]) -> None:
        """Start the planned load into the sequence's block tables."""

    def limit(self, load: PrefixLoad, end: int) -> int:
        """Position, at most `end`, up to which tokens may be computed now. Segments before that
        position that have not started are dropped and will be computed.
        """
        return end

    def poll(self) -> None:
        """Handle the transfers that have ended, and start queued transfers as capacity allows."""

    def published(self, digests: list[bytes], end: int, blocks: Blocks, prompt_blocks: int) -> None:
        """Store `blocks`, the newly computed and published blocks of a sequence up to entry `end`.
        The sequence's prompt has `prompt_blocks` full blocks.
        """

    def released(
        self, load: PrefixLoad, digests: list[bytes], end: int, offload: Blocks = ()
    ) -> None:
        """End the load of a sequence that releases its blocks. `end` is the number of published
        blocks; 0 if it had none. `offload` has blocks of a preempted sequence, up to `end`, that
        are stored in RAM regardless of the admission filter.
        """

    def tables(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Blocks that transfers hold, as (group, blocks), for the audit of the pools."""
        return ()
