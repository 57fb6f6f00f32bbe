"""Interfaces of the KV tiers: to the scheduler (above them) and to the movers (below them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.core.transfer import Transfer, TransferResult

Blocks = Sequence[Sequence[int]]
"""For each KV group, its blocks at one range of block table entries. The range is the same for all
groups.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes that are constant while an engine runs."""

    block_size: int
    """Tokens in a block."""
    block_bytes: int
    """Bytes of one block in all groups without a window, summed over all ranks."""
    per_chunk: int
    """Blocks in a chunk."""
    step_tokens: int
    """Maximum number of tokens in a step."""
    window_bytes: int = 0
    """Bytes that a load moves for the groups with a sliding window. The number does not depend on
    the length of the prefix; 0 without such groups.
    """


class TransferExecutor(Protocol):
    """The part of the executor's interface that the tiers use: it moves the bytes of a transfer on
    every rank.
    """

    def transfer(self, transfer: Transfer, /) -> None:
        """Start a transfer. Does not block."""

    def moved(self) -> list[TransferResult]:
        """Results of the transfers that all ranks have answered since the last call."""
