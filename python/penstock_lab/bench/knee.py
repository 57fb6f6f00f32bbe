"""Where a curve of throughput against load bends."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

FEWEST_LOADS = 3
"""With fewer, a bend between the loads cannot be told from one at them."""
LIFT = 0.1
"""A knee lies at least so far above the diagonal, in shares of the highest throughput; less is
noise.
"""
BEND = 0.5
"""Beyond a knee, a unit of load brings less than this share of what it brought before."""


@dataclass(frozen=True, slots=True)
class Knee:
    """`load` is a concurrency or a request rate; `throughput` is in the unit of the curve."""

    load: float
    throughput: float


def find_knee(points: Iterable[tuple[float, float]]) -> Knee | None:
    """The knee of `(load, throughput)` points, in any order; None where the points show none.

    The method is Kneedle (Satopaa, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a Haystack,
    2011): with both axes scaled to 1, the knee is the point that lies furthest above the diagonal.
    Three things differ, because the curve is known to be one of throughput. It starts at the
    origin, which no measurement need say, so that a server which one request saturates has its knee
    at 1. Instead of a smoothing spline, loads that were measured several times count by their
    median, and the curve is the running maximum, so a server that loses throughput beyond
    saturation is flat there. Instead of Kneedle's sensitivity, which is in units of the distance
    between loads and so depends on how many there are, a knee must stand out (`LIFT`) and bend
    (`BEND`).

    Load is the horizontal axis, not TTFT, because it is exact: below saturation TTFT is constant
    but for noise, and noise scaled to 1 has knees. The other usual choice, the maximum of
    throughput / latency (Kleinrock: Power and Deterministic Rules of Thumb, 1979), is by Little's
    law X^2 / N for N users: throughput that grows slower than the square root of the concurrency,
    as it does where a batch is bound by arithmetic, would have its knee at the first point however
    much there is to gain.

    The unit of neither axis matters. How far the loads go does, where throughput never becomes
    flat: of x / (x + m) up to b, the knee is at sqrt(m (b + m)) - m.
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
    """Medians by load, loads ascending, throughput never falling. Points without a number are left
    out.
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
