"""SVG primitives: elements, markers, paths, text that fits. No knowledge of charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Place = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

CHARACTER = 0.56
"""Mean width of a character in a sans-serif font, as a share of its size; long enough for most
fonts.
"""
STYLES = 8
"""Colours, dashes and markers that the style sheet knows; more series begin again with the next
dashes.
"""


@dataclass(frozen=True, slots=True)
class Form:
    """A size to draw for. One unit is a CSS pixel on the screen it is meant for."""

    name: str
    width: int
    height: int
    font: float
    x_ticks: int
    y_ticks: int
    lane: float
    """Greatest height of one row of a Gantt chart."""


WIDE = Form("wide", 640, 380, 13.5, 6, 6, 14)
NARROW = Form("narrow", 336, 300, 12, 4, 5, 12)


def clean(text: str) -> str:
    """Without the characters that XML and UTF-8 cannot hold, controls and lone surrogates."""
    return "".join(character if _printable(ord(character)) else "\ufffd" for character in text)


def _printable(code: int) -> bool:
    if code < 0x20:
        return code in (0x9, 0xA, 0xD)
    return not (0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE)


def words(text: str) -> str:
    """Text for the body of an element or for an attribute, escaped."""
    return escape(clean(text), quote=True)


def tag(name: str, body: str = "", **attributes: object) -> str:
    """An element. `body` is markup already; attributes are escaped here, `_` in their names becomes
    `-`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{words(_value(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{body}</{name}>" if body else f"<{name}{written}/>"


def _value(value: object) -> str:
    return short(value) if isinstance(value, float) else str(value)


def short(number: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    text = f"{number:.1f}"
    return text[:-2] if text.endswith(".0") else text


def text_width(text: str, font: float) -> float:
    """Estimated width. Characters of wide scripts count twice."""
    return sum(1.8 if ord(character) > 0x2E80 else 1.0 for character in text) * CHARACTER * font


def fitting(text: str, width: float, font: float) -> str:
    """The text, or as much of it as fits, with an ellipsis."""
    if text_width(text, font) <= width:
        return text
    kept = text
    while kept and text_width(kept + "…", font) > width:
        kept = kept[:-1]
    return kept + "…"


def line_path(places: Sequence[Place]) -> str:
    return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in places)


def simplified(places: Sequence[Place], tolerance: float = 0.2) -> list[Place]:
    """Those places that a line needs so that no other lies further than `tolerance` from it (Ramer
    1972, Douglas and Peucker 1973)."""
    kept = {0, len(places) - 1}
    open_ranges = [(0, len(places) - 1)]
    while open_ranges:
        first, last = open_ranges.pop()
        if last - first < 2:
            continue
        distances = [
            _distance(place, places[first], places[last]) for place in places[first + 1 : last]
        ]
        furthest = max(range(len(distances)), key=distances.__getitem__)
        if distances[furthest] > tolerance:
            middle = first + 1 + furthest
            kept.add(middle)
            open_ranges += [(first, middle), (middle, last)]
    return [places[index] for index in sorted(kept) if index >= 0]


def _distance(place: Place, start: Place, end: Place) -> float:
    along = (end[0] - start[0], end[1] - start[1])
    offset = (place[0] - start[0], place[1] - start[1])
    length = math.hypot(*along)
    if length == 0:
        return math.hypot(*offset)
    return abs(along[0] * offset[1] - along[1] * offset[0]) / length


def marker(style: int, x: float, y: float, radius: float) -> str:
    """Path of the marker of a style around a place."""
    r = radius
    shapes = (
        (
            (-r, 0),
            (
                f"a{short(r)} {short(r)} 0 1 0 {short(2 * r)} 0a{short(r)} {short(r)} 0 1 0 "
                f"{short(-2 * r)} 0z"
            ),
        ),
        ((-0.85 * r, -0.85 * r), f"h{short(1.7 * r)}v{short(1.7 * r)}h{short(-1.7 * r)}z"),
        ((-r, 0.8 * r), f"l{short(r)} {short(-1.8 * r)}l{short(r)} {short(1.8 * r)}z"),
        ((0, -1.25 * r), _steps((r, 1.25 * r), (-r, 1.25 * r), (-r, -1.25 * r))),
        ((-r, -0.8 * r), f"l{short(r)} {short(1.8 * r)}l{short(r)} {short(-1.8 * r)}z"),
        ((-0.4 * r, -1.1 * r), _cross(r)),
        (
            (0, -1.1 * r),
            _steps((r, 0.8 * r), (-0.4 * r, 1.2 * r), (-1.2 * r, 0), (-0.4 * r, -1.2 * r)),
        ),
        ((-1.1 * r, -0.5 * r), f"h{short(2.2 * r)}v{short(r)}h{short(-2.2 * r)}z"),
    )
    (dx, dy), shape = shapes[style % STYLES]
    return f"M{short(x + dx)} {short(y + dy)}{shape}"


def _steps(*steps: Place) -> str:
    return "".join(f"l{short(x)} {short(y)}" for x, y in steps) + "z"


def _cross(r: float) -> str:
    arm, side = 0.7 * r, 0.8 * r
    moves = (
        f"h{short(side)}",
        f"v{short(arm)}",
        f"h{short(arm)}",
        f"v{short(side)}",
        f"h{short(-arm)}",
    )
    back = (
        f"v{short(arm)}",
        f"h{short(-side)}",
        f"v{short(-arm)}",
        f"h{short(-arm)}",
        f"v{short(-side)}",
    )
    return "".join(moves + back) + f"h{short(arm)}z"


def style_class(style: int) -> str:
    """Classes of the style sheet that give a series its colour and its dashes."""
    return f"s{style % STYLES} d{(style + style // STYLES) % STYLES}"


def overlaps(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def document(
    form_name: str, width: float, height: float, title: str, description: str, body: str
) -> str:
    """The SVG element, with title and description for screen readers."""
    head = tag("title", words(title) or " ") + tag("desc", words(description) or " ")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{form_name}" role="img" '
        f'viewBox="0 0 {short(width)} {short(height)}">{head}{body}</svg>'
    )
