"""A number with its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """So many bytes, and why."""

    name: str
    bytes: int
    formula: str


def human(size: float) -> str:
    """Bytes in GiB, or in MiB below one."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
