"""Interfaces of the KV tiers: to the scheduler above and to the movers below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.core.transfer import Transfer, TransferResult

Blocks = Sequence[Sequence[int]]
"""For each KV group, the blocks at the same range of block table entries."""


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
    """Bytes that the groups with a window need for any prefix; 0 without such groups."""


class TransferExecutor(Protocol):
    """Executor that moves the bytes of a transfer on every rank."""

    def transfer(self, transfer: Transfer, /) -> None:
        """Start a transfer. Does not block."""

    def moved(self) -> list[TransferResult]:
        """Transfers that all ranks have answered since the last call."""
