"""Numbers for readers: three significant digits, thousands grouped, never NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOTHING = "–"
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def human(value: float | None) -> str:
    """Three significant digits: 0.0123, 1.23, 12.3, 123; all from 1,234 to 1e15; else with an
    exponent.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.2e}"
    if size >= 999.5:
        return f"{value:,.0f}"
    if size == 0:
        return "0"
    # Of the rounded size: 0.9996 has the digits of 1.
    decimals = 2 - math.floor(math.log10(float(f"{size:.3g}")))
    return f"{value:.{min(max(decimals, 0), 6)}f}"


def times(ratio: float | None) -> str:
    """A ratio and the sign of multiplication."""
    return NOTHING if ratio is None or not math.isfinite(ratio) else f"{_ratio(ratio)}×"


def _ratio(ratio: float) -> str:
    if 0.095 <= abs(ratio) < 99.5:
        return f"{ratio:.2f}"
    return f"{ratio:.2g}" if 1e-4 < abs(ratio) < 1 else human(ratio)


def times_range(low: float, high: float) -> str:
    """The ends of a range of ratios, as one number when they print alike."""
    ends = _ratio(low), _ratio(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def human_range(low: float, high: float) -> str:
    ends = human(low), human(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def plain(value: float) -> str:
    """A number chosen by a user (a concurrency, a rate), without a needless `.0`."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:g}"


def tick(value: float, step: float) -> str:
    """Label of a tick, with enough decimals to differ from its neighbour `step` away."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= size * 10 or (abs(value) >= size and size > 1e3):
            return _short(value / size, step / size) + suffix
    return _short(value, step)


def _short(value: float, step: float) -> str:
    if step <= 0 or not math.isfinite(step):
        return f"{value:g}"
    if abs(value) >= 1e6 or step < 1e-6:
        digits = math.ceil(math.log10(abs(value) / step)) + 1 if value else 1
        return f"{value:.{min(max(digits, 3), 15)}g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{decimals}f}"


def count(number: int, one: str, many: str = "") -> str:
    """`1 request`, `1,234 requests`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listing(words: Sequence[str], most: int = 8) -> str:
    """`a, b and c`; items beyond `most` are counted instead of named."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
