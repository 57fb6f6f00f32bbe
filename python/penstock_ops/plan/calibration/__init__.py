"""Constants of the step model, fitted to measured rows, and how far a prediction may be off.

The band of a prediction comes from rows whose model shape was left out of the fit: a new model is
such a shape too.
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
"""What the fit chooses from. Bandwidth and operations cannot be over what the data sheet says. The
models have 60 to 94 layers, too alike to tell a layer's overhead from a step's: a step's is set."""
COVERED = 0.9
"""Share of left-out rows that a band is drawn to hold; 80% is what is promised."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured time per output token under a closed loop of `concurrency` clients."""

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
    """Factors between which the measured over the predicted value lies in most cases."""

    low: float
    high: float


Predict = Callable[[Row, Constants], tuple[float, int]]
"""Seconds a token without overheads, and layers of the model."""


def read_rows(path: Path = PUBLISHED) -> list[Row]:
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [Row(**dict(zip(data["columns"], row, strict=True))) for row in data["rows"]]


def fit(rows: Sequence[Row], predict: Predict) -> Constants:
    """The constants of the least mean relative error, of a fixed grid: equal rows, equal result."""
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
    """Measured all-reduces of ranks on several hosts: bytes and seconds."""

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
    """Seconds of a sum for each doubling of the hosts: the least mean relative error."""
    sums = read_sums()

    def error(seconds: float) -> float:
        found = sums.group(seconds)
        return sum(abs(math.log(found.all_reduce(size) / took)) for size, took in sums.rows)

    return min(ACROSS, key=error)


def left_out(rows: Sequence[Row], predict: Predict) -> list[tuple[Row, float]]:
    """Measured over predicted value of each row, with the constants of the other shapes' rows."""
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
    """Predicted seconds a token."""
    base, layers = predict(row, replace(constants, layer=0.0, step=0.0))
    return base + layers * constants.layer + constants.step


def predictor(specs: Mapping[str, DecoderSpec]) -> Predict:
    """Predictions for rows of models with these shapes."""
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
    """Constants and band of accelerators, and what they were fitted to."""
    data = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    return Constants(**data["constants"]), Band(**data["band"]), str(data["source"])


def band(ratios: Iterable[float]) -> Band:
    """Around 1, as wide on both sides in ratio, over `COVERED` of the ratios."""
    sizes = sorted(abs(math.log(ratio)) for ratio in ratios)
    at = min(len(sizes) - 1, math.ceil(COVERED * len(sizes)) - 1)
    widest = math.exp(sizes[at]) if sizes else math.inf
    return Band(1 / widest, widest)
