"""Requests below each other as SVG: waiting, up to the first token, decode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.bench.report import frame as frames
from penstock.bench.report.charts import Axis, Gantt, Lane, Stretch, lane_parts
from penstock.bench.report.frame import Entry, Frame
from penstock.bench.report.scale import Scale, fit
from penstock.bench.report.svg_primitives import Form, document, line_path, short, tag

# Parts of a request with class and thickness: not told apart by colour alone.
_PARTS = (("client queue", "gq", 0.22), ("to first token", "gp", 0.92), ("decode", "gd", 0.6))
_MOST_HEIGHT = 620.0
_LEAST_PITCH = 2.6


def drawing(chart: Gantt, form: Form) -> str:
    lanes = chart.lanes
    pitch = max(min(form.lane, _MOST_HEIGHT / max(len(lanes), 1)), _LEAST_PITCH)
    legend, top = frames.legend([*map(_entry, _PARTS), Entry("failed", _cross(11, 0, 3.5))], form)
    x = fit(
        chart.x,
        [time for lane in lanes for part in lane_parts(lane) for time in part or ()],
        form.x_ticks,
    )
    height = pitch * max(len(lanes), 1) + form.font * 5.3
    frame = frames.make(form, top, height, x, _rows(lanes))
    body = legend + frames.axes(frame, form, chart.x, Axis("Request"))
    for index, (_, kind, share) in enumerate(_PARTS):
        path = "".join(
            _segment(lane_parts(lane)[index], row, frame) for row, lane in enumerate(lanes)
        )
        if path:
            body += tag("path", class_=kind, d=path, stroke_width=f"{pitch * share:.2f}")
    body += _failures(lanes, frame, pitch)
    return document(form.name, form.width, top + height, chart.title, chart.description, body)


def _entry(part: tuple[str, str, float]) -> Entry:
    name, kind, share = part
    return Entry(name, tag("path", class_=kind, d="M0 0H22", stroke_width=f"{9 * share:.1f}"))


def _rows(lanes: Sequence[Lane]) -> Scale:
    """Rows from the top; about eight of them are numbered."""
    total = max(len(lanes), 1)
    every = max(1, math.ceil(len(lanes) / 8))
    ticks = tuple(
        (row + 0.5, f"{lane.number:,}") for row, lane in enumerate(lanes) if row % every == 0
    )
    return Scale(float(total), 0.0, False, ticks)


def _segment(part: Stretch | None, row: int, frame: Frame) -> str:
    if part is None:
        return ""
    (start, y), (end, _) = frame.place(part[0], row + 0.5), frame.place(part[1], row + 0.5)
    return f"M{short(start)} {short(y)}H{short(max(end, start + 0.1))}"


def _failures(lanes: Sequence[Lane], frame: Frame, pitch: float) -> str:
    size = min(max(pitch * 0.45, 2.5), 4)
    parts = []
    for row, lane in enumerate(lanes):
        if lane.failure:
            ends = [part[1] for part in lane_parts(lane) if part] or [lane.due]
            parts.append(_cross(*frame.place(max(ends), row + 0.5), size))
    return "".join(parts)


def _cross(x: float, y: float, size: float) -> str:
    path = line_path([(x - size, y - size), (x + size, y + size)])
    return tag(
        "path", class_="gx", d=path + line_path([(x - size, y + size), (x + size, y - size)])
    )
