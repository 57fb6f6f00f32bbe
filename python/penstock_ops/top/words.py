"""Short text for numbers and names in the table, without characters that a terminal would
interpret.
"""

from __future__ import annotations

import unicodedata

NOTHING = "-"
SIZES = (("T", 2**40), ("G", 2**30), ("M", 2**20), ("K", 2**10))
COUNTS = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def printable(text: str) -> str:
    """`text` with ? in place of characters that are unsafe on a terminal: they move the cursor,
    change the writing direction, take no column, or cannot be displayed.
    """
    return "".join(one if columns(one) else "?" for one in text)


def columns(character: str) -> int:
    """Number of columns of a character; 0 for a character that is not displayed."""
    if character.isascii():
        return 1 if character.isprintable() else 0
    if not character.isprintable() or unicodedata.category(character) in ("Mn", "Me", "Mc"):
        return 0
    if unicodedata.bidirectional(character) in ("R", "AL"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def width(text: str) -> int:
    """Width of a printable text in columns."""
    return len(text) if text.isascii() else sum(map(columns, text))


def cut(text: str, most: int) -> str:
    """`text` truncated to `most` columns; a ~ marks the truncation."""
    if width(text) <= most:
        return text
    kept, used = [], 0
    for one in text:
        if used + columns(one) > most - 1:
            break
        kept.append(one)
        used += columns(one)
    return "".join(kept) + "~" if most > 0 else ""


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """`text` padded or truncated to exactly the given number of columns."""
    text = cut(text, columns)
    space = " " * (columns - width(text))
    return space + text if right else text + space


def count(value: float | None) -> str:
    """A number below 10^12 in at most four characters."""
    if value is None:
        return NOTHING
    for unit, size in COUNTS:
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:.1f}" if value < 9.95 and value != int(value) else f"{value:.0f}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value * 100:.0f}%"


def seconds(value: float | None) -> str:
    """A latency in at most five characters."""
    if value is None:
        return NOTHING
    if value < 0.00995:
        return f"{value * 1e3:.1f}ms"
    if value < 0.9995:
        return f"{value * 1e3:.0f}ms"
    if value < 9.995:
        return f"{value:.2f}s"
    return f"{value:.1f}s" if value < 99.95 else f"{value:.0f}s"


def duration(value: float) -> str:
    """An elapsed time."""
    whole = int(value)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def size(value: float) -> str:
    """A size in bytes, in units of 1024."""
    for unit, one in SIZES:
        if value >= one:
            scaled = value / one
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}B"
