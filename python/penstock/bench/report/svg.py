"""Charts as SVG for the page, whose style sheet has colours and dashes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.bench.report import frame as frames
from penstock.bench.report import svg_gantt
from penstock.bench.report.charts import Chart, Gantt, Plot, Point, Series
from penstock.bench.report.frame import Frame
from penstock.bench.report.scale import fit
from penstock.bench.report.svg_primitives import (
    NARROW,
    WIDE,
    Box,
    Form,
    Place,
    document,
    inside,
    line_path,
    marker,
    overlaps,
    short,
    simplified,
    style_class,
    tag,
    text_width,
    words,
)

MANY = 40
"""Series without a line and with more points than this have small marks."""


def draw(chart: Chart) -> str:
    """Both forms of a chart; the style sheet shows the one that fits."""
    return drawing(chart, WIDE) + drawing(chart, NARROW)


def drawing(chart: Chart, form: Form) -> str:
    return svg_gantt.drawing(chart, form) if isinstance(chart, Gantt) else _plot(chart, form)


def _plot(plot: Plot, form: Form) -> str:
    entries = [frames.series_entry(s.name, s.style, s.line) for s in plot.series if not s.light]
    legend, top = frames.legend(entries, form)
    x = fit(plot.x, _extents(plot.points, horizontal=True), form.x_ticks)
    y = fit(plot.y, _extents(plot.points, horizontal=False), form.y_ticks)
    frame = frames.make(form, top, form.height, x, y)
    body = legend + frames.axes(frame, form, plot.x, plot.y)
    body += "".join(_series(series, frame) for series in plot.series)
    body += _labels(plot, frame, form)
    return document(form.name, form.width, top + form.height, plot.title, plot.description, body)


def _extents(points: Sequence[Point], horizontal: bool) -> Iterator[float]:
    for point in points:
        if math.isfinite(point.x) and math.isfinite(point.y):
            yield point.x if horizontal else point.y
            yield from (point.x_range if horizontal else point.y_range) or ()


def _series(series: Series, frame: Frame) -> str:
    classes = style_class(series.style) + (" light" if series.light else "")
    parts = []
    if series.line:
        runs = [simplified(run) for run in _runs(series.points, frame)]
        path = "".join(line_path(run) for run in runs if len(run) > 1)
        parts += [tag("path", class_=f"line {classes}", d=path)] if path else []
    parts += _whiskers(series, frame, classes)
    marked = [point for point in series.points if point.marked and _finite(point)]
    many = not series.line and len(marked) > MANY
    places = [frame.place(point.x, point.y) for point in marked]
    if many and series.style % 8 == 0:
        # Zero-length segments with round caps: the shortest circles there are.
        path = "".join(f"M{short(x)} {short(y)}h0" for x, y in places)
        parts.append(tag("path", class_=f"dot {classes}", d=path))
    elif places:
        path = "".join(marker(series.style, x, y, 2.4 if many else 4) for x, y in places)
        parts.append(tag("path", class_=f"mark {classes}{' many' if many else ''}", d=path))
    return "".join(parts)


def _runs(points: Sequence[Point], frame: Frame) -> Iterator[list[Place]]:
    """Runs of drawable points: a point without a position breaks the line."""
    run: list[Place] = []
    for point in points:
        if _finite(point):
            run.append(frame.place(point.x, point.y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _finite(point: Point) -> bool:
    return math.isfinite(point.x) and math.isfinite(point.y)


def _whiskers(series: Series, frame: Frame, classes: str) -> list[str]:
    path = ""
    for point in filter(_finite, series.points):
        if point.x_range:
            path += line_path([frame.place(end, point.y) for end in point.x_range])
        if point.y_range:
            path += line_path([frame.place(point.x, end) for end in point.y_range])
    return [tag("path", class_=f"whisker {classes}", d=path)] if path else []


def _labels(plot: Plot, frame: Frame, form: Form) -> str:
    """Labels of points where they hide the least, and rings around points with an emphasis."""
    labelled = [p for p in plot.points if _finite(p) and (p.label or p.emphasis)]
    marked = [p for p in plot.points if _finite(p) and p.marked] if labelled else []
    taken: list[Box] = [_around(frame.place(p.x, p.y), 5) for p in marked]
    taken += [
        box for series in plot.series if series.line and labelled for box in _along(series, frame)
    ]
    parts = []
    for point in labelled:
        x, y = frame.place(point.x, point.y)
        if point.emphasis:
            parts.append(tag("circle", cx=x, cy=y, r=8.0, class_="ring"))
            taken.append(_around((x, y), 9))
        text = f"{point.label} {point.emphasis}".strip()
        box = _free((x, y), text_width(text, form.font), form, frame.box, taken)
        taken.append(box)
        kind = "t l b" if point.emphasis else "t l"
        parts.append(tag("text", words(text), x=box[0], y=box[3] - form.font * 0.25, class_=kind))
    return "".join(parts)


def _along(series: Series, frame: Frame) -> Iterator[Box]:
    """Boxes along the line of a series, avoided by labels."""
    for run in _runs(series.points, frame):
        for (x, y), (to_x, to_y) in pairwise(run):
            steps = max(1, int(math.hypot(to_x - x, to_y - y) / 6))
            for step in range(1, steps):
                yield _around((x + (to_x - x) * step / steps, y + (to_y - y) * step / steps), 1.5)


def _around(place: Place, radius: float) -> Box:
    return place[0] - radius, place[1] - radius, place[0] + radius, place[1] + radius


def _free(place: Place, width: float, form: Form, frame: Box, taken: Sequence[Box]) -> Box:
    """The position around a point whose label touches least."""
    x, y = place
    height = form.font * 1.1
    best: tuple[float, Box] | None = None
    for distance in (5.0, 8.0, 14.0):
        for across, down in ((1, -1), (-1, -1), (1, 1), (1, 0), (-1, 0), (0, -1), (0, 1), (-1, 1)):
            left = x - width / 2 + across * (width / 2 + distance)
            top = y - height / 2 + down * (height / 2 + distance)
            box = _moved_inside((left, top, left + width, top + height), form, frame)
            cost = sum(overlaps(box, other) for other in taken) + (0 if inside(box, frame) else 0.5)
            if best is None or cost < best[0]:
                best = cost, box
            if cost == 0:
                return box
    assert best is not None
    return best[1]


def _moved_inside(box: Box, form: Form, frame: Box) -> Box:
    left, top, right, bottom = box
    dx = min(0.0, form.width - right) + max(0.0, -left)
    dy = max(0.0, frame[1] - form.font - top) + min(0.0, frame[3] - bottom)
    return left + dx, top + dy, right + dx, bottom + dy
