"""Numbers of bytes with the formulas that explain them, and columns of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Use = Literal["reserve", "activations", "free"]
"""Use of a line's bytes: buffers and other memory of the engine, the hidden states of a step, or
other programs.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A number of bytes, with its name and its formula as text."""

    name: str
    bytes: int
    formula: str
    use: Use = "reserve"


def human(size: float) -> str:
    """A number of bytes as text: in GiB, or in MiB below one GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def columns(rows: Sequence[tuple[str, ...]], left: Sequence[int]) -> list[str]:
    """Rows as lines, each column as wide as its widest text; columns not in `left` are aligned to
    the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{text:<{width}}" if at in left else f"{text:>{width}}"
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
