"""Numbers of bytes with the formulas that explain them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A number of bytes, with its name and its formula as text."""

    name: str
    bytes: int
    formula: str


def human(size: float) -> str:
    """A number of bytes as text: in GiB, or in MiB below one GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
