"""Tables of numbers for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def render(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table. Columns are right-aligned, except the last one, which has notes."""
    cells = [list(headings), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = ["  ".join(_padded(row, widths)) for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return [line.rstrip() for line in lines]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    *numbers, note = row
    return [*(f"{cell:>{width}}" for cell, width in zip(numbers, widths, strict=False)), note]


def figure(value: object, decimals: int = 2) -> str:
    """A number as text with `decimals` decimals; `-` if `value` is not a number."""
    return f"{value:,.{decimals}f}" if isinstance(value, int | float) else "-"
