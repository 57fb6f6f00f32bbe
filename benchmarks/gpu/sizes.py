"""Sizes of the backend, in the product's server and in the benchmark's driver."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config import ON_GPUS

BLOCK = 64
"""Tokens per KV block."""


@dataclass(frozen=True)
class Sizes:
    """Limits of a step and of a sequence, in tokens and sequences."""

    dry: bool
    budget: int
    sequences: int
    longest: int


FULL = Sizes(dry=False, budget=ON_GPUS.tokens, sequences=ON_GPUS.sequences, longest=4096)
DRY = Sizes(dry=True, budget=256, sequences=4, longest=256)


def blocks_of(tokens: int) -> int:
    """KV blocks of a sequence of `tokens` tokens."""
    return -(-tokens // BLOCK)
