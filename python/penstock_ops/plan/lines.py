"""A number with its formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A number of bytes, and its formula."""

    name: str
    bytes: int
    formula: str


def human(size: float) -> str:
    """Format bytes in GiB, or in MiB below one GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
