"""Parts of objects that are there or not, and their places in the values of a chart.

The functions of the kinds are called with a plan's facts, which gives objects, or with places in
the values of a chart, which gives its templates. So they say `when`, where others say `if`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Condition:
    """What a template asks when it is rendered."""

    expression: str

    def __bool__(self) -> bool:
        raise TypeError(f"{self.expression} is not known before a chart is rendered: say when()")


@dataclass(frozen=True, slots=True)
class Place:
    """A value of a chart, of any shape."""

    expression: str


class Text(str):
    """A text of a chart, which may be a part of others."""

    __slots__ = ("expression",)
    expression: str

    @classmethod
    def at(cls, expression: str) -> Self:
        found = cls(f"{{{{ {expression} }}}}")
        found.expression = expression
        return found


class Chosen(Text):
    """A text that the user of a chart chooses, of any characters: quoted where it is a whole."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A value under a condition of a template."""

    condition: Condition
    value: object


Truth = bool | Condition
Data = Any
"""Plain data, or its Place."""
ABSENT = object()


def when(condition: Truth, value: object) -> object:
    """The value, or nothing."""
    if isinstance(condition, Condition):
        return Part(condition, value)
    return value if condition else ABSENT


def optional(value: Data) -> object:
    """The value, or nothing where it is empty."""
    if isinstance(value, Place | Text):
        return Part(Condition(value.expression), value)
    return value if value else ABSENT


def settled(value: Data) -> Data:
    """Without what is absent."""
    if isinstance(value, Mapping):
        return {key: settled(item) for key, item in value.items() if item is not ABSENT}
    if isinstance(value, list | tuple):
        return [settled(item) for item in value if item is not ABSENT]
    return value
