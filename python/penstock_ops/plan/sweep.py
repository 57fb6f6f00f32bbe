"""`penstock plan --concurrency`: predicts a sweep over numbers of clients, as a table and a chart,
beside a measured one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.lists import parse_counts
from penstock_lab.bench.report.charts import Axis, Plot, Point, Series
from penstock_lab.bench.report.drawing import draw
from penstock_lab.bench.table import render
from penstock_ops.plan.closed_loop import Deployment, Lengths, Predicted, Row, sweep
from penstock_ops.plan.cut import deployed
from penstock_ops.plan.fitting import Placement, fit
from penstock_ops.plan.measured_sweep import Measured, read_sweep
from penstock_ops.plan.search import Speed
from penstock_ops.plan.speed import step_model
from penstock_ops.plan.verdict import misfit, place

KINDS = (".svg", ".png")
"""Suffixes of the files that a chart can be written to."""


def add_sweep(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sweep", "a prediction for each number of clients")
    group.add_argument(
        "--concurrency",
        metavar="LIST",
        help="clients that each send their next request when the last one has ended, such as "
        "1..125 or 1,5,25; of --isl and --osl tokens, to all replicas together",
    )
    group.add_argument(
        "--measured",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="result files of `penstock bench sweep`, or their directory, shown beside it",
    )
    group.add_argument(
        "--plot", type=Path, metavar="FILE", help="chart, .svg or .png; needs penstock[plot]"
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """A deployment, its predicted loads, and the measured ones among them."""

    title: str
    rows: Sequence[Row]
    measured: Mapping[int, Measured]
    lengths: Lengths
    is_bound: bool
    """Whether the times to first token are lower bounds only."""


def run_sweep(
    parsed: argparse.Namespace, placement: Placement, speed: Speed
) -> tuple[int, list[str]]:
    """Predict the sweep and write its chart if requested. Returns the exit status, 1 if the model
    does not fit, and the lines about the result.
    """
    if parsed.plot and parsed.plot.suffix not in KINDS:
        raise InvalidValueError(
            "--plot", str(parsed.plot), f"a file ending in {' or '.join(KINDS)}"
        )
    loads = sorted(parse_counts("--concurrency", parsed.concurrency))
    lengths = _lengths(parsed, placement)
    memory = fit(placement)
    if not placement.holds(memory):
        return 1, [misfit(memory, placement)]
    replicas, target = parsed.replicas or 1, placement.target
    devices = replicas * memory.cut.size
    if devices > target.count:
        raise InvalidValueError(
            "--replicas", replicas, f"at most {target.count // memory.cut.size} of {memory.cut}"
        )
    subject = placement.subject
    steps = speed.profile or step_model(
        subject.spec,
        subject.weights,
        target.accelerator,
        memory.cut,
        speed.constants,
        placement.kv,
    )
    deployment = Deployment(memory, steps, placement.load.at_once, replicas)
    rows = sweep(deployment, loads, lengths, speed)
    measured = read_sweep(parsed.measured, lengths) if parsed.measured else {}
    how = deployed(str(memory.cut), replicas, devices)
    title = f"{subject.name}, {place(target, devices)}{f' ({how})' if how else ''}"
    found = Sweep(title, rows, measured, lengths, speed.waiting is None)
    if parsed.plot:
        _write(found, parsed.plot)
    return 0, lines(found)


def _lengths(parsed: argparse.Namespace, placement: Placement) -> Lengths:
    for name in ("isl", "osl"):
        if getattr(parsed, name) < 1:
            raise InvalidValueError(f"--{name}", getattr(parsed, name), "a number over 0")
    found = Lengths(parsed.isl, parsed.osl)
    longest = placement.load.context or placement.subject.spec.max_position
    if found.total > longest:
        raise InvalidValueError(
            "--isl",
            parsed.isl,
            f"with --osl at most {longest}, the longest sequence that is served",
        )
    return found


def lines(found: Sweep) -> list[str]:
    """The sweep as text: its peak, the table, and how far measured loads are from it."""
    peak = max((row.mid for row in found.rows), key=lambda each: each.throughput)
    (band,) = (row for row in found.rows if row.mid is peak)
    head = (
        f"{found.title}: up to {peak.throughput:,.0f} output tokens/s "
        f"({band.slow.throughput:,.0f} to {band.fast.throughput:,.0f}) with {peak.clients:,} "
        f"clients of {found.lengths.isl:,}/{found.lengths.osl:,} tokens."
    )
    headings = ["clients", "out tok/s", "low", "high", "TPOT ms", "low", "high", "TTFT ms"]
    if found.measured:
        headings += ["measured tok/s", "TPOT ms", "TTFT ms"]
    table = render([*headings, ""], [_cells(row, found) for row in found.rows])
    bound = ["TTFT is a lower bound: real engines are slower (--calibrate predicts it)"]
    return [head, "", *table, *(bound if found.is_bound else []), *_distance(found)]


def _cells(row: Row, found: Sweep) -> list[str]:
    mid = row.mid
    ttft = row.fast.ttft if found.is_bound else mid.ttft
    cells = [f"{mid.clients:,}"]
    cells += [f"{each.throughput:,.0f}" for each in (mid, row.slow, row.fast)]
    cells += [f"{1e3 * each.tpot:,.1f}" for each in (mid, row.fast, row.slow)]
    cells.append(f"{1e3 * ttft:,.0f}")
    if found.measured:
        cells += _measured_cells(found.measured.get(mid.clients))
    waits = mid.served < mid.clients
    return [*cells, f"{mid.served:,.0f} at once, the others wait" if waits else ""]


def _measured_cells(measured: Measured | None) -> list[str]:
    if measured is None:
        return ["", "", ""]
    return [f"{measured.throughput:,.0f}", _cell(measured.tpot_ms, 1), _cell(measured.ttft_ms, 0)]


def _cell(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:,.{decimals}f}"


def _distance(found: Sweep) -> list[str]:
    """How far the predicted throughput is from the measured one, at loads that have both."""
    pairs = [
        (row, found.measured[row.mid.clients])
        for row in found.rows
        if row.mid.clients in found.measured
    ]
    if not pairs:
        return ["no load was measured that is predicted"] if found.measured else []
    ratios = [row.mid.throughput / measured.throughput - 1 for row, measured in pairs]
    inside = sum(
        row.slow.throughput <= measured.throughput <= row.fast.throughput for row, measured in pairs
    )
    text = f"predicted tokens/s: {min(ratios):+.0%} to {max(ratios):+.0%} of the measured; "
    return [text + f"{inside} of {len(pairs)} measured loads are within the band"]


def chart(found: Sweep) -> Plot:
    """Throughput against the number of clients, with the band, and measured loads beside it."""

    def points(which: str) -> tuple[Point, ...]:
        kept: list[Predicted] = [getattr(row, which) for row in found.rows]
        return tuple(Point(each.clients, each.throughput) for each in kept)

    series = [
        Series("predicted", 0, points("mid")),
        Series("low", 0, points("slow"), light=True),
        Series("high", 0, points("fast"), light=True),
    ]
    if found.measured:
        own = tuple(Point(each.clients, each.throughput) for each in found.measured.values())
        series.append(Series("measured", 1, own))
    lengths = f"{found.lengths.isl:,}/{found.lengths.osl:,} tokens"
    return Plot(
        key="sweep",
        title=f"{found.title}, {lengths}",
        description=f"Output tokens per second by number of clients, {lengths}.",
        x=Axis("Clients"),
        y=Axis("Output throughput", "tokens/s", log=False, zero=True),
        series=tuple(series),
        notes=("Thin: ends of the error band.",),
    )


def _write(found: Sweep, path: Path) -> None:
    picture = draw([chart(found)])["sweep"]
    try:
        path.write_bytes(picture.svg if path.suffix == ".svg" else picture.png)
    except OSError as error:
        raise PenstockError(f"--plot {path}: {error.strerror}") from error
