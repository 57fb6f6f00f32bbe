"""Reads SVG drawings back: every place that they name, so that tests can say where it lies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"
_TOKEN = re.compile(r"([MLHVAZmlhvaz])|(-?\d+(?:\.\d+)?)")
_ARGUMENTS = {"m": 2, "l": 2, "h": 1, "v": 1, "a": 7, "z": 0}


def drawings(markup: str) -> list[ET.Element]:
    """The SVG elements of `svg.draw`; not well-formed markup is an error."""
    return list(ET.fromstring(f"<all>{markup}</all>"))


def view_box(drawing: ET.Element) -> tuple[float, float]:
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    return width, height


def places(element: ET.Element, x: float = 0.0, y: float = 0.0) -> Iterator[tuple[float, float]]:
    """All places of an element and those below it, moved by their `translate`."""
    moved = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", "translate(0 0)"))
    assert moved, element.attrib
    x, y = x + float(moved[1]), y + float(moved[2])
    if element.tag == f"{SVG}path":
        yield from ((x + px, y + py) for px, py in path_places(element.attrib["d"]))
    elif element.tag == f"{SVG}text":
        yield x + float(element.attrib["x"]), y + float(element.attrib["y"])
    elif element.tag == f"{SVG}circle":
        yield x + float(element.attrib["cx"]), y + float(element.attrib["cy"])
    for child in element:
        yield from places(child, x, y)


def path_places(path: str) -> Iterator[tuple[float, float]]:
    """Ends of all segments of a path. NaN, exponents and unknown commands are an error."""
    rest = _TOKEN.sub("", path).strip()
    assert not rest, f"not a path: {rest!r} in {path!r}"
    tokens = [command or float(number) for command, number in _TOKEN.findall(path)]
    x = y = 0.0
    start = (x, y)
    command, index = "", 0
    while index < len(tokens):
        if isinstance(tokens[index], str):
            command = str(tokens[index])
            index += 1
        size = _ARGUMENTS[command.lower()]
        values = [float(token) for token in tokens[index : index + size]]
        assert len(values) == size, path
        index += size
        x, y = _moved(command, values, (x, y), start)
        start = (x, y) if command in "Mm" else start
        yield x, y


def _moved(
    command: str, values: list[float], here: tuple[float, float], start: tuple[float, float]
) -> tuple[float, float]:
    x, y = here if command.islower() else (0.0, 0.0)
    match command.lower():
        case "h":
            return x + values[0], here[1]
        case "v":
            return here[0], y + values[0]
        case "z":
            return start
        case _:
            return x + values[-2], y + values[-1]


def assert_inside(drawing: ET.Element, room: float = 6.0) -> None:
    """Every place is finite and in the view box, but for the radius of a marker."""
    width, height = view_box(drawing)
    for x, y in places(drawing):
        assert math.isfinite(x)
        assert math.isfinite(y)
        assert -room <= x <= width + room, (x, width)
        assert -room <= y <= height + room, (y, height)
