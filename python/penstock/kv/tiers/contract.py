"""Interfaces of the KV tiers: the scheduler's seam above, movers below."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.core.transfer import Transfer, TransferResult

if TYPE_CHECKING:
    from penstock.kv.tiers.load import PrefixLoad


Blocks = Sequence[Sequence[int]]
"""A column for each KV group, of the blocks at the same entries of the block tables."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that do not change while an engine runs."""

    block_size: int
    """Tokens."""
    block_bytes: int
    """One block of the groups without a window, on all ranks together."""
    per_chunk: int
    """Blocks of a chunk."""
    step_tokens: int
    """Tokens of the largest step."""
    window_bytes: int = 0
    """What the groups with a window need of a prefix, however long; 0 without such groups."""


class Tiers:
    """The tiers as the scheduler sees them: those of an engine that has none. No method waits, and
    none moves bytes.

    lookup -> start -> limit and `PrefixLoad.advance`, step by step -> released
    """

    @property
    def busy(self) -> bool:
        """Whether transfers are in flight or queued."""
        return False

    @property
    def offloading(self) -> bool:
        """Whether blocks become free as soon as RAM has a copy of them."""
        return False

    @property
    def stalled_for(self) -> float:
        """Seconds for which a load that stalls has held blocks; 0 without one."""
        return 0.0

    @property
    def next_poll(self) -> float:
        """Seconds until the next poll, while there is nothing else to do."""
        return math.inf

    def lookup(self, load: PrefixLoad, digests: list[bytes], hits: int) -> int | None:
        """Plan the load of a prompt, whose first `hits` blocks are in the pool: how many of those
        are still wanted. None while the tiers' answers are awaited; ask again after a poll.
        """
        return hits

    def start(self, load: PrefixLoad, blocks: Sequence[array[int]]) -> None:
        """Begin the planned load into the block tables of the sequence."""

    def limit(self, load: PrefixLoad, end: int) -> int:
        """The token, at most `end`, up to which may be computed now. Segments before it that have
        not begun are computed instead of loaded.
        """
        return end

    def poll(self) -> None:
        """Take in the transfers that have ended, and begin others."""

    def published(self, digests: list[bytes], end: int, blocks: Blocks, prompt_blocks: int) -> None:
        """Store the blocks of a sequence up to `end`, which were computed and named; its prompt has
        `prompt_blocks` full blocks.
        """

    def released(
        self, load: PrefixLoad, digests: list[bytes], end: int, offload: Blocks = ()
    ) -> None:
        """End the load of a sequence that gives up its blocks, of which `end` were published; 0 for
        one that had none. RAM takes the blocks `offload`, up to `end`, of a preempted one in any
        case.
        """

    def tables(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Blocks that transfers hold, as (group, blocks), for the audit of the pools."""
        return ()


class TransferExecutor(Protocol):
    """Moves bytes on every rank: an executor."""

    def transfer(self, transfer: Transfer, /) -> None:
        """Begin, and return at once."""

    def moved(self) -> list[TransferResult]:
        """Transfers that every rank has answered since the last call."""
