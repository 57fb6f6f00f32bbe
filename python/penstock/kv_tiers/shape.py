"""Sizes that do not change while an engine runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    block_size: int
    """Tokens."""
    block_bytes: int
    """Of all ranks together."""
    per_chunk: int
    """Blocks of a chunk."""
    step_tokens: int
    """Of the largest step."""
