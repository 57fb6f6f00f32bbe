"""A distribution reduced to few points with the same quantiles."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bench.stats import percentile

EXACT = 400
"""Most values drawn one by one; more are drawn by quantiles."""
NAMED = (50.0, 90.0, 99.0)
"""Percentiles that carry a marker. Each is exact."""
# Denser towards the end, where the curves of servers part.
_GRID = (
    *(index * 0.5 for index in range(180)),
    *(90 + index * 0.1 for index in range(90)),
    *(99 + index * 0.02 for index in range(50)),
    100.0,
)


def curve(ordered: Sequence[float]) -> list[tuple[float, float, bool]]:
    """(value, percent, whether it is a named percentile), ascending, of ascending values.

    Percentiles interpolate linearly, so between the points of a small sample the line itself is
    exact.
    """
    if not ordered:
        return []
    if len(ordered) == 1:
        return [(ordered[0], 100.0, True)]
    if len(ordered) <= EXACT:
        last = len(ordered) - 1
        places = {100 * index / last: value for index, value in enumerate(ordered)}
    else:
        places = {percent: percentile(ordered, percent) for percent in _GRID}
    places.update({percent: percentile(ordered, percent) for percent in NAMED})
    return [(value, percent, percent in NAMED) for percent, value in sorted(places.items())]
