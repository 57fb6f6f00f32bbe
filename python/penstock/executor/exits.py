"""How a rank ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    rank: int
    how: str
    at: float
    """Monotonic time of this host."""
    killed: bool = False
    """By a signal: a cause, not a consequence of another rank's end."""
