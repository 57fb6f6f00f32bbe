"""Conditional parts of objects, and references into a chart's values.

The functions for the kinds run with a plan's facts, to create objects, or with references into a
chart's values, to create its templates. They therefore use `when` instead of `if`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that a template evaluates when it is rendered."""

    expression: str

    def __bool__(self) -> bool:
        raise TypeError(f"{self.expression} is not known before a chart is rendered: say when()")


@dataclass(frozen=True, slots=True)
class Place:
    """A reference to a chart value of any shape."""

    expression: str


class Text(str):
    """A text of a chart, which may be embedded in other texts."""

    __slots__ = ("expression",)
    expression: str

    @classmethod
    def at(cls, expression: str) -> Self:
        found = cls(f"{{{{ {expression} }}}}")
        found.expression = expression
        return found


class Chosen(Text):
    """A text chosen by a chart's user, with arbitrary characters. Quoted where it stands alone."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A value with a template condition."""

    condition: Condition
    value: object


Truth = bool | Condition
Data = Any
"""Plain data, or a reference to it."""
ABSENT = object()


def when(condition: Truth, value: object) -> object:
    """The value if the condition holds, else nothing. For a template, both."""
    if isinstance(condition, Condition):
        return Part(condition, value)
    return value if condition else ABSENT


def optional(value: Data) -> object:
    """The value, or nothing if it is empty."""
    if isinstance(value, Place | Text):
        return Part(Condition(value.expression), value)
    return value if value else ABSENT


def settled(value: Data) -> Data:
    """The data without absent items."""
    if isinstance(value, Mapping):
        return {key: settled(item) for key, item in value.items() if item is not ABSENT}
    if isinstance(value, list | tuple):
        return [settled(item) for item in value if item is not ABSENT]
    return value
