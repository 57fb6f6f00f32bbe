"""Finds the knee of a throughput-against-load curve: the load beyond which more gains little."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

FEWEST_LOADS = 3
"""Minimum number of loads for a knee. With fewer, the position of a bend is undetermined."""
LIFT = 0.1
"""Minimum height of a knee above the line from the origin to the last point, as a share of the
highest throughput. Less is noise.
"""
BEND = 0.5
"""Beyond a knee, the slope of throughput must be below this share of the slope before it."""


@dataclass(frozen=True, slots=True)
class Knee:
    """`load` is a concurrency or a request rate; `throughput` is in the unit of the curve."""

    load: float
    throughput: float


def find_knee(points: Iterable[tuple[float, float]]) -> Knee | None:
    """The knee of `(load, throughput)` points, in any order; None if there is none.

    The method is Kneedle (Satopaa, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a Haystack,
    2011): with both axes scaled to 1, the knee is the point furthest above the diagonal. There are
    three differences, since the curve is a throughput. First, it starts at the origin without a
    measurement there, so that a server saturated by one request has its knee at 1. Second, instead
    of a smoothing spline, repeated loads count by their median, and the curve is the running
    maximum: it is flat if a server loses throughput beyond saturation. Third, Kneedle's sensitivity
    depends on the number of loads, because it is in units of their distance; here a knee must stand
    out (`LIFT`) and bend (`BEND`) instead.

    The horizontal axis is load instead of TTFT, because load is exact. Below saturation TTFT is
    constant up to noise, and noise scaled to 1 has knees. Another common choice is the maximum of
    throughput / latency (Kleinrock: Power and Deterministic Rules of Thumb, 1979). By Little's law
    it is X^2 / N for N users. If throughput grows more slowly than the square root of the
    concurrency, as in a compute-bound batch, its knee is always the first point, however much
    throughput is still to gain.

    The units of the axes do not matter. The range of loads matters if throughput never becomes
    flat: for x / (x + m) up to b, the knee is at sqrt(m (b + m)) - m.
    """
    curve = _rising(points)
    if len(curve) < FEWEST_LOADS:
        return None
    most, highest = curve[-1].load, curve[-1].throughput
    if highest <= 0:
        return None
    best = max(curve, key=lambda point: point.throughput / highest - point.load / most)
    return best if _bends(best, most, highest) else None


def _rising(points: Iterable[tuple[float, float]]) -> list[Knee]:
    """Median throughput by ascending load, as a running maximum. Points that are not finite are
    skipped.
    """
    measured: dict[float, list[float]] = defaultdict(list)
    for load, throughput in points:
        if math.isfinite(load) and math.isfinite(throughput) and load > 0:
            measured[load].append(throughput)
    curve: list[Knee] = []
    highest = 0.0
    for load in sorted(measured):
        highest = max(highest, statistics.median(measured[load]))
        curve.append(Knee(load, highest))
    return curve


def _bends(knee: Knee, most: float, highest: float) -> bool:
    if knee.throughput / highest - knee.load / most < LIFT:
        return False
    before = knee.throughput / knee.load
    after = (highest - knee.throughput) / (most - knee.load)
    return after < BEND * before
