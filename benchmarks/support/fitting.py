"""Fits the timing of a simulated engine (`crates/lab/sim`, `Timing`) to measurements of a real one.

The model: a step takes `base`, plus D(n) for n decoding sequences, plus p for each prompt token,
plus d for each thousand tokens that decodes attend to, plus c for each thousand pairs of a prompt
token and a token that it attends to. All times are in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import median

Row = Sequence[float]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Times of prefill, derived from the TTFT of lone requests."""

    base_us: float
    us_per_token: float
    us_per_context_ktoken: float

    def ttft_us(self, prompt: int, budget: int) -> float:
        base, tokens, kpairs = _terms(prompt, budget)
        return (
            self.base_us * base + self.us_per_token * tokens + self.us_per_context_ktoken * kpairs
        )


@dataclass(frozen=True, slots=True)
class Decode:
    """A measurement: the median time of a step that decodes `batch` sequences with an average of
    `context` tokens each.
    """

    batch: int
    context: float
    step_us: float


def _terms(prompt: int, budget: int) -> tuple[float, float, float]:
    """(steps, tokens, thousands of attended pairs) of a lone prompt that is computed in chunks of
    `budget` tokens.
    """
    return math.ceil(prompt / budget), prompt, prompt * (prompt + 1) / 2 / 1e3


def fit_prefill(
    ttfts_us: Mapping[int, Sequence[float]], budget: int, most_base_us: float
) -> Prefill:
    """Fit the times of prefill to TTFTs in microseconds by prompt length. Errors are relative, so
    that short prompts count as much as long ones.

    `base_us` includes a request's time outside the engine (HTTP, tokenization). It is at most
    `most_base_us`, the shortest measured step: otherwise noise in long prompts could make decodes
    free.
    """
    middles = {prompt: median(measured) for prompt, measured in ttfts_us.items()}
    rows = [
        [term / middle for term in _terms(prompt, budget)] for prompt, middle in middles.items()
    ]
    base, tokens, kpairs = non_negative(rows, [1.0] * len(rows))
    if base > most_base_us:
        base = most_base_us
        tokens, kpairs = non_negative(
            [row[1:] for row in rows], [1 - base * row[0] for row in rows]
        )
    return Prefill(base, tokens, kpairs)


def fit_context(points: Sequence[Decode]) -> float:
    """Microseconds for each thousand tokens that decodes attend to. Compares batches that were
    measured with two context lengths.
    """
    by_batch: dict[int, list[Decode]] = {}
    for point in points:
        by_batch.setdefault(point.batch, []).append(point)
    above = below = 0.0
    for own in by_batch.values():
        short, long = min(own, key=lambda p: p.context), max(own, key=lambda p: p.context)
        ktokens = short.batch * (long.context - short.context) / 1e3
        above += ktokens * (long.step_us - short.step_us)
        below += ktokens * ktokens
    return max(0.0, above / below) if below else 0.0


def fit_decode(
    points: Sequence[Decode], base_us: float, context_us: float
) -> list[tuple[int, float]]:
    """(batch size, microseconds of a step without base and attention), from the measurements with
    the shortest contexts.
    """
    shortest: dict[int, Decode] = {}
    for point in points:
        known = shortest.get(point.batch)
        if known is None or point.context < known.context:
            shortest[point.batch] = point
    costs = []
    for batch, point in sorted(shortest.items()):
        attention = context_us * batch * point.context / 1e3
        costs.append((batch, max(0.0, point.step_us - base_us - attention)))
    return costs


def timing(prefill: Prefill, points: Sequence[Decode]) -> dict[str, object]:
    """The member `timing` of a profile for the simulated engine."""
    context = fit_context(points)
    decode = fit_decode(points, prefill.base_us, context)
    return {
        "base_us": round(prefill.base_us, 1),
        "decode_us": [[batch, round(cost, 1)] for batch, cost in decode],
        "prompt_us_per_token": round(prefill.us_per_token, 2),
        "decode_us_per_context_ktoken": round(context, 2),
        "prompt_us_per_context_ktoken": round(prefill.us_per_context_ktoken, 3),
        "jitter": 0.0,
    }


def non_negative(rows: Sequence[Row], wanted: Sequence[float]) -> list[float]:
    """Least squares with non-negative coefficients: the best such solution over all sets of
    columns.
    """
    width = len(rows[0])
    every = chain.from_iterable(combinations(range(width), size) for size in range(1, width + 1))
    best, least = [0.0] * width, sum(value * value for value in wanted)
    for columns in every:
        solution = _least_squares([[row[column] for column in columns] for row in rows], wanted)
        if solution is None or min(solution) < 0:
            continue
        full = [0.0] * width
        for column, value in zip(columns, solution, strict=True):
            full[column] = value
        error = sum((_dot(row, full) - value) ** 2 for row, value in zip(rows, wanted, strict=True))
        if error < least:
            best, least = full, error
    return best


def _dot(left: Row, right: Row) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _least_squares(rows: Sequence[Row], wanted: Sequence[float]) -> list[float] | None:
    """Least squares, solved by the normal equations; None if the columns are linearly dependent."""
    columns = list(zip(*rows, strict=True))
    scales = [math.sqrt(_dot(column, column)) for column in columns]
    if min(scales) == 0:
        return None
    units = [
        [value / scale for value in column] for column, scale in zip(columns, scales, strict=True)
    ]
    matrix = [[_dot(left, right) for right in units] + [_dot(left, wanted)] for left in units]
    solution = _solve(matrix)
    return solution and [value / scale for value, scale in zip(solution, scales, strict=True)]


def _solve(matrix: list[list[float]]) -> list[float] | None:
    """Solve an augmented matrix with unit diagonal by Gauss-Jordan elimination; None if it is
    singular.
    """
    size = len(matrix)
    for at in range(size):
        pivot = max(range(at, size), key=lambda index: abs(matrix[index][at]))
        matrix[at], matrix[pivot] = matrix[pivot], matrix[at]
        if abs(matrix[at][at]) < 1e-9:
            return None
        matrix[at] = [value / matrix[at][at] for value in matrix[at]]
        for other in range(size):
            if other != at:
                factor = matrix[other][at]
                matrix[other] = [
                    value - factor * lead
                    for value, lead in zip(matrix[other], matrix[at], strict=True)
                ]
    return [row[-1] for row in matrix]
