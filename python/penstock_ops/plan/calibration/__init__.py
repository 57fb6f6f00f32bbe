"""Fits the constants of the step time model to measurements, and computes the error band of its
predictions.

The band comes from rows (measurements) of models whose shape was left out of the fit, because a new
model has a shape that the fit has not seen, either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from penstock.model.spec import DecoderSpec
from penstock_ops.plan.collectives import Group, group
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.hardware import accelerator
from penstock_ops.plan.speed import Constants, StepModel, step_model
from penstock_ops.plan.weights import uniform

PUBLISHED = Path(__file__).parent / "published.yaml"
SUMS = Path(__file__).parent / "all_reduce.yaml"
SHIPPED = Path(__file__).parent / "constants.yaml"
MEMORY = (0.6, 0.7, 0.8, 0.9, 0.95)
COMPUTE = (0.3, 0.45, 0.6, 0.75, 0.9)
LAYERS = tuple(1e-6 * at for at in range(0, 151, 2))
ACROSS = tuple(1e-6 * at for at in range(101))
STEP = 1e-3
"""Fixed seconds of a step. MEMORY, COMPUTE and LAYERS above are the grid that the fit searches. Its
shares of bandwidth and operations do not exceed 1. The fixed time of a step is not fitted: the
measured models have 60 to 94 layers, too similar to separate it from the time of a layer.
"""
COVERED = 0.9
"""Share of the left-out rows that the band covers. Predictions promise only 80%."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement: the time per output token under `concurrency` clients, each of which sends its
    next request when the last one has ended.
    """

    model: str
    accelerator: str
    engine: str
    weights: str
    tp: int
    concurrency: int
    isl: int
    osl: int
    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Band:
    """Range that contains the ratio of measured to predicted time in most cases."""

    low: float
    high: float


Predict = Callable[[Row, Constants], tuple[float, int]]
"""Function (row, constants) -> (seconds per token without fixed times, number of layers)."""


def read_rows(path: Path = PUBLISHED) -> list[Row]:
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [Row(**dict(zip(data["columns"], row, strict=True))) for row in data["rows"]]


def fit(rows: Sequence[Row], predict: Predict) -> Constants:
    """The constants on the search grid with the smallest mean relative error over `rows`."""
    best, least = Constants(1.0, 1.0), math.inf
    for memory in MEMORY:
        for compute in COMPUTE:
            bare = Constants(memory, compute, across=across())
            bases = [(*predict(row, bare), row.tpot_ms / 1e3) for row in rows]
            for layer in LAYERS:
                error = sum(
                    abs(math.log((base + layers * layer + STEP) / measured))
                    for base, layers, measured in bases
                )
                if error < least - 1e-9:
                    best, least = replace(bare, layer=layer, step=STEP), error
    return best


@dataclass(frozen=True, slots=True)
class Sums:
    """Measured times of all-reduces over ranks on several hosts, as (bytes, seconds)."""

    accelerator: str
    ranks: int
    rows: tuple[tuple[int, float], ...]

    def group(self, across: float) -> Group:
        bare = Constants(1.0, 1.0)
        return group(accelerator(self.accelerator), self.ranks, bare.link, bare.hop, across)


def read_sums(path: Path = SUMS) -> Sums:
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = tuple((int(size), us / 1e6) for size, us in data["rows"])
    return Sums(data["accelerator"], data["ranks"], rows)


@cache
def across() -> float:
    """Seconds that each doubling of the number of hosts adds to an all-reduce, fitted to `Sums`."""
    sums = read_sums()

    def error(seconds: float) -> float:
        found = sums.group(seconds)
        return sum(abs(math.log(found.all_reduce(size) / took)) for size, took in sums.rows)

    return min(ACROSS, key=error)


def left_out(rows: Sequence[Row], predict: Predict) -> list[tuple[Row, float]]:
    """Each row with its ratio of measured to predicted time. The prediction uses constants that
    were fitted to the rows of all other models.
    """
    found = []
    for shape in dict.fromkeys(row.model for row in rows):
        constants = fit([row for row in rows if row.model != shape], predict)
        found += [
            (row, row.tpot_ms / 1e3 / seconds(row, constants, predict))
            for row in rows
            if row.model == shape
        ]
    return found


def seconds(row: Row, constants: Constants, predict: Predict) -> float:
    """Predicted seconds per output token of a row, with fixed times."""
    base, layers = predict(row, replace(constants, layer=0.0, step=0.0))
    return base + layers * constants.layer + constants.step


def predictor(specs: Mapping[str, DecoderSpec]) -> Predict:
    """A predictor for rows of the models in `specs`, by name."""
    models: dict[tuple[str, str, str, int], StepModel] = {}

    def predict(row: Row, constants: Constants) -> tuple[float, int]:
        key = (row.model, row.accelerator, row.weights, row.tp)
        if key not in models:
            spec, device = specs[row.model], accelerator(row.accelerator)
            models[key] = step_model(spec, uniform(row.weights), device, Cut(row.tp, 1), constants)
        model = replace(models[key], constants=constants)
        return model.tpot(row.concurrency, row.isl, row.osl), len(specs[row.model].layers)

    return predict


def shipped() -> tuple[Constants, Band, str]:
    """The constants and band for accelerators that Penstock ships, and the name of the data that
    they were fitted to.
    """
    data = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    return Constants(**data["constants"]), Band(**data["band"]), str(data["source"])


def band(ratios: Iterable[float]) -> Band:
    """Band around 1 that covers the share COVERED of the ratios. It is symmetric in ratio: from 1/x
    to x.
    """
    sizes = sorted(abs(math.log(ratio)) for ratio in ratios)
    at = min(len(sizes) - 1, math.ceil(COVERED * len(sizes)) - 1)
    widest = math.exp(sizes[at]) if sizes else math.inf
    return Band(1 / widest, widest)
