"""Fits the step model of `penstock plan` to published measurements and writes its constants.

python benchmarks/plan_fit.py [--plot predicted.svg]

Each row (a measurement) is also predicted with constants fitted to the rows of other models. The
error of these predictions is printed, and determines the error band.
`tests/plan/test_calibration.py` checks the written file against it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import yaml

from penstock.model.fields import Fields
from penstock.model.spec import DecoderSpec
from penstock_ops.plan.calibration import (
    SHIPPED,
    Band,
    Row,
    band,
    fit,
    left_out,
    predictor,
    read_rows,
)
from penstock_ops.plan.catalogue import entries
from penstock_ops.plan.shape import read_shape, text_part
from penstock_ops.plan.speed import Constants


def shapes() -> dict[str, DecoderSpec]:
    """Sizes of the measured models, by the last component of the model's name."""
    measured = {row.model for row in read_rows()}
    return {
        entry.short: read_shape(Fields(Path("config.json"), text_part(entry.config)))
        for entry in entries().values()
        if entry.short in measured
    }


def fitted(rows: Sequence[Row]) -> tuple[Constants, Band, list[tuple[Row, float]]]:
    """(constants fitted to all rows, error band, each row with its ratio of measured to predicted
    value). The band and the ratios come from fits without the row's model.
    """
    predict = predictor(shapes())
    ratios = left_out(rows, predict)
    return fit(rows, predict), band(ratio for _, ratio in ratios), ratios


def document(constants: Constants, found: Band, rows: int) -> dict[str, object]:
    """The content of the file with constants that Penstock ships."""
    names = ("memory", "compute", "link", "hop", "across", "layer", "step")
    return {
        "source": f"benchmarks/plan_fit.py on the {rows} rows of published.yaml, sums between "
        "hosts on those of all_reduce.yaml",
        "constants": {name: float(f"{getattr(constants, name):.6g}") for name in names},
        "band": {"low": round(found.low, 4), "high": round(found.high, 4)},
    }


def plot(path: Path, ratios: Sequence[tuple[Row, float]], found: Band) -> None:
    """Plot measured against predicted values, with the error band in grey."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 4.5))
    most = max(row.tpot_ms for row, _ in ratios) * 1.15
    axes.fill_between(
        [0, most], [0, most * found.low], [0, most * found.high], color="0.9", label="band"
    )
    axes.plot([0, most], [0, most], color="0.5", linewidth=1)
    for model in dict.fromkeys(row.model for row, _ in ratios):
        points = [(row, ratio) for row, ratio in ratios if row.model == model]
        axes.scatter(
            [row.tpot_ms / ratio for row, ratio in points],
            [row.tpot_ms for row, _ in points],
            s=24,
            label=model,
        )
    axes.set(
        xlabel="predicted ms per token, model left out of the fit",
        ylabel="measured ms per token",
        xlim=(0, most),
        ylim=(0, most),
    )
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parsed = parser.parse_args()
    rows = read_rows()
    constants, found, ratios = fitted(rows)
    for row, ratio in ratios:
        print(
            f"{row.model:18} {row.accelerator:15} {row.engine:7} tp {row.tp:2} x{row.concurrency:3}"
            f"  measured {row.tpot_ms:6.2f} ms  predicted {row.tpot_ms / ratio:6.2f} ms"
        )
    errors = sorted(abs(1 / ratio - 1) for _, ratio in ratios)
    print(f"mean error {sum(errors) / len(errors):.1%}, median {errors[len(errors) // 2]:.1%}")
    written = document(constants, found, len(rows))
    SHIPPED.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
    print(SHIPPED.read_text(encoding="utf-8"))
    if parsed.plot:
        plot(parsed.plot, ratios, found)


if __name__ == "__main__":
    main()
