"""Limits with which the backend runs, in Penstock's server and in the benchmark's driver."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config import ON_GPUS

BLOCK = 64
"""Tokens in a KV block."""


@dataclass(frozen=True)
class Sizes:
    """Maximum tokens (`budget`) and sequences of a step, and maximum length of a sequence in
    tokens.
    """

    dry: bool
    budget: int
    sequences: int
    longest: int


FULL = Sizes(dry=False, budget=ON_GPUS.tokens, sequences=ON_GPUS.sequences, longest=4096)
DRY = Sizes(dry=True, budget=256, sequences=4, longest=256)


def blocks_of(tokens: int) -> int:
    """Number of KV blocks for a sequence of `tokens` tokens."""
    return -(-tokens // BLOCK)
