"""Forms that many sources share. Each function raises ParseError for any other form: a value that
is cut, doubled or in another unit must not pass for a good one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

from penstock_ops.verify.error import ParseError

WHOLE = re.compile(r"\d{1,20}", re.ASCII)
DECIMAL = re.compile(r"\d{1,15}(\.\d{1,9})?", re.ASCII)


def whole(text: str, line: int, place: str = "") -> int:
    if not WHOLE.fullmatch(text):
        raise ParseError(line, text, "a whole number", place)
    return int(text)


def decimal(text: str, line: int, place: str = "") -> float:
    if not DECIMAL.fullmatch(text):
        raise ParseError(line, text, "a decimal number", place)
    return float(text)


def only_line(text: str, place: str) -> str:
    """The line of a file of sysfs that has one value."""
    lines = text.split("\n")
    if len(lines) > 2 or (len(lines) == 2 and lines[1]) or not lines[0].strip():
        second = next((line for line in lines[1:] if line), text.strip())
        raise ParseError(len(lines), second, "one line", place)
    return lines[0].strip()


def only_whole(text: str, place: str) -> int:
    return whole(only_line(text, place), 1, place)


def fields(text: str, line: int, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ParseError(line, text, expected)
    return match


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, without trailing blanks, with their numbers from 1."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.rstrip()


def measurement(text: str, *names: str) -> Mapping[str, float]:
    """The numbers that a measurement printed as a JSON object; `names` must be among them."""

    def number(digits: str) -> float:
        return decimal(digits.removeprefix("-"), 1) * (-1 if digits.startswith("-") else 1)

    try:
        found = json.loads(text, parse_float=number, parse_int=number)
    except ParseError:
        raise
    except (ValueError, RecursionError) as error:
        raise ParseError(1, text.strip(), "a JSON object") from error
    numbers: dict[str, float] = {}
    if not isinstance(found, dict):
        raise ParseError(1, text.strip(), "a JSON object")
    for name in names:
        value = found.get(name)
        if not isinstance(value, float) or not math.isfinite(value):
            raise ParseError(1, text.strip(), f"a number as {name!r}")
        numbers[name] = value
    return numbers
