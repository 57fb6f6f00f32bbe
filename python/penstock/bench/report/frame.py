"""Frame of all charts: a legend above, ticks and grid around a box for the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.report.charts import Axis
from penstock.bench.report.scale import Scale
from penstock.bench.report.svg_primitives import (
    Box,
    Form,
    Place,
    fitting,
    line_path,
    marker,
    short,
    style_class,
    tag,
    text_width,
    words,
)

_SAMPLE = 26.0
_GAP = 16.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the legend: its name, and the markup of its sample, drawn at 0, 0 to 22 units
    right.
    """

    name: str
    sample: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Box of the data in a drawing, and the scales of its axes."""

    box: Box
    x: Scale
    y: Scale

    def place(self, x: float, y: float) -> Place:
        left, top, right, bottom = self.box
        return left + self.x.place(x) * (right - left), bottom - self.y.place(y) * (bottom - top)


def series_entry(name: str, style: int, line: bool) -> Entry:
    sample = tag("path", class_=f"mark {style_class(style)}", d=marker(style, 11, 0, 4))
    if line:
        sample = tag("path", class_=f"line {style_class(style)}", d="M0 0H22") + sample
    return Entry(name, sample)


def legend(entries: Sequence[Entry], form: Form) -> tuple[str, float]:
    """Markup and height; names that are too long for the form are cut."""
    if not entries:
        return "", 0.0
    pitch = form.font * 1.6
    x, y, parts = 0.0, pitch * 0.6, []
    for entry in entries:
        name = fitting(entry.name, form.width - _SAMPLE - 4, form.font)
        width = _SAMPLE + text_width(name, form.font)
        if x and x + width > form.width:
            x, y = 0.0, y + pitch
        label = tag("text", words(name) or " ", x=_SAMPLE, y=form.font * 0.35, class_="t")
        parts.append(
            tag("g", entry.sample + label, transform=f"translate({short(x + 4)} {short(y)})")
        )
        x += width + _GAP
    return "".join(parts), y + pitch * 0.7


def make(form: Form, top: float, height: float, x: Scale, y: Scale) -> Frame:
    """A frame of `height` below `top`, with room for the labels of its ticks and the names of its
    axes.
    """
    left = max((text_width(label, form.font) for _, label in y.ticks), default=0.0) + 10
    right = max(8.0, text_width(x.ticks[-1][1], form.font) / 2 if x.ticks else 0.0)
    box = (left, top + form.font * 2.1, form.width - right, top + height - form.font * 3.4)
    return Frame(box, x, y)


def axes(frame: Frame, form: Form, x_axis: Axis, y_axis: Axis) -> str:
    left, top, right, bottom = frame.box
    font = form.font
    rows = [bottom - frame.y.place(value) * (bottom - top) for value, _ in frame.y.ticks]
    columns = [left + frame.x.place(value) * (right - left) for value, _ in frame.x.ticks]
    grid = [line_path([(left, y), (right, y)]) for y in rows]
    grid += [line_path([(x, top), (x, bottom)]) for x in columns]
    parts = [
        tag("path", class_="grid", d="".join(grid) or "M0 0"),
        tag("path", class_="axis", d=_base(frame.box)),
    ]
    for y, (_, label) in zip(rows, frame.y.ticks, strict=True):
        parts.append(tag("text", words(label), x=left - 6, y=y + font * 0.35, class_="t k e"))
    parts += _x_labels(frame, columns, form)
    name = fitting(y_axis.title, form.width - 4, font)
    parts.append(tag("text", words(name) or " ", x=0.0, y=top - font * 0.75, class_="t n"))
    name = fitting(x_axis.title, right - left, font)
    parts.append(tag("text", words(name) or " ", x=right, y=bottom + font * 2.9, class_="t n e"))
    return "".join(parts)


def _base(box: Box) -> str:
    left, _, right, bottom = box
    return line_path([(left, bottom), (right, bottom)])


def _x_labels(frame: Frame, columns: Sequence[float], form: Form) -> list[str]:
    """Tick labels without those that would touch the one before."""
    parts: list[str] = []
    free = float("-inf")
    for x, (_, label) in zip(columns, frame.x.ticks, strict=True):
        half = text_width(label, form.font) / 2
        if x - half < free:
            continue
        free = x + half + 6
        y = frame.box[3] + form.font * 1.4
        parts.append(tag("text", words(label), x=x, y=y, class_="t k m"))
    return parts
