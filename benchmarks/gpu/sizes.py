"""Sizes of the backend, shared by the benchmark's and the product's scheduler."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 64
"""Tokens per KV block."""


@dataclass(frozen=True)
class Sizes:
    """Limits of a step and of a sequence, in tokens and sequences."""

    dry: bool
    budget: int
    sequences: int
    longest: int


FULL = Sizes(dry=False, budget=8192, sequences=256, longest=4096)
DRY = Sizes(dry=True, budget=256, sequences=4, longest=256)
