"""Position of values on an axis, and its ticks; shared by both renderers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.bench.report.charts import Axis, Extent
from penstock.bench.report.numbers import plain, tick

LOG_FROM = 40.0
"""Ratio of largest to smallest value from which an automatic axis is logarithmic."""
_LARGEST = 1e100
_MANTISSAS = (1.0, 2.0, 5.0)
_LINEAR_TICKS = 5
_MOST_LOG_TICKS = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """The ends of an axis in its unit, and (value, label) of its ticks."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """The fraction of the axis at which a value lies, cut to its ends: 0..1."""
        if not math.isfinite(value):
            return 1.0 if value > 0 else 0.0
        if self.log:
            if _clamp(value) <= 0:
                return 0.0
            share = math.log10(_clamp(value) / self.low) / math.log10(self.high / self.low)
        else:
            share = (_clamp(value) - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def fit(axis: Axis, values: Iterable[float], ticks: int = _LINEAR_TICKS) -> Scale:
    """A scale that holds all finite values. Without any it is 0..1."""
    scale = _fit(axis, values, ticks)
    own = [value for value in axis.ticks if scale.low <= value <= scale.high]
    return replace(scale, ticks=tuple((value, plain(value)) for value in own)) if own else scale


def _fit(axis: Axis, values: Iterable[float], ticks: int) -> Scale:
    finite = [_clamp(value) for value in values if math.isfinite(value)]
    if not finite:
        finite = [0.0, 1.0]
    positive = [value for value in finite if value >= max(axis.low, 1 / _LARGEST)]
    if axis.extent is Extent.FIXED:
        return _linear(axis.low, axis.high, ticks)
    if _is_log(axis, finite, positive):
        return _logarithmic(min(positive), max(positive), ticks)
    low, high = min(finite), max(finite)
    if axis.zero or (low > 0 and low < 0.4 * high):
        low, high = min(low, 0.0), max(high, 0.0)
    return _linear(low, high, ticks)


def _is_log(axis: Axis, finite: list[float], positive: list[float]) -> bool:
    if axis.extent is Extent.LINEAR or not positive:
        return False
    if axis.extent is Extent.LOG:
        return True
    return len(positive) == len(finite) and max(positive) >= LOG_FROM * min(positive)


def _clamp(value: float) -> float:
    return min(max(value, -_LARGEST), _LARGEST) if abs(value) >= 1 / _LARGEST else 0.0


def _linear(low: float, high: float, ticks: int) -> Scale:
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) * 0.5 or 1.0
        low, high = low - room, high + room
    step = _step((high - low) / max(ticks, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values = [index * step for index in range(first, last + 1)]
    return Scale(
        values[0], values[-1], False, tuple((value, tick(value, step)) for value in values)
    )


def _step(raw: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is at least `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in _MANTISSAS if m * power >= raw * (1 - 1e-9)), 10.0 * power)


def _logarithmic(low: float, high: float, ticks: int) -> Scale:
    if high <= low * (1 + 1e-9):
        low, high = low / 2, high * 2
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    steps = [m * 10.0**power for power in range(first, last + 1) for m in _MANTISSAS]
    start = max((value for value in steps if value <= low * (1 + 1e-9)), default=low)
    end = min((value for value in steps if value >= high * (1 - 1e-9)), default=high)
    inside = [value for value in steps if start <= value <= end]
    most = min(_MOST_LOG_TICKS, ticks + 4)
    if len(inside) > most:
        inside = [value for value in inside if _is_decade(value)]
    inside = inside[:: max(1, math.ceil(len(inside) / most))]
    return Scale(start, end, True, tuple((value, tick(value, value)) for value in inside))


def _is_decade(value: float) -> bool:
    exponent = math.log10(value)
    return abs(exponent - round(exponent)) < 1e-6
