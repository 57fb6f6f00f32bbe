"""Conditional parts of Kubernetes objects, and references into a Helm chart's values.

The functions in `kinds` run with the numbers of a plan, to create objects, or with references into
a chart's values, to create its templates. The value of a reference is unknown then, so they use
`when` instead of `if`.
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
class ValueReference:
    """A reference to a chart value of any shape."""

    expression: str


class Text(str):
    """A text that is a template expression. It may be embedded in other texts."""

    __slots__ = ("expression",)
    expression: str

    @classmethod
    def at(cls, expression: str) -> Self:
        found = cls(f"{{{{ {expression} }}}}")
        found.expression = expression
        return found


class Quoted(str):
    """A text that is always quoted, as template expressions are: a chart renders the same bytes
    that a manifest has.
    """

    __slots__ = ()


class Noted(str):
    """A text with a comment, which is written on the line above it."""

    __slots__ = ("note",)
    note: str

    @classmethod
    def by(cls, text: str, note: str) -> Self:
        found = cls(text)
        found.note = "".join(c if c.isprintable() else " " for c in note)
        return found


class Chosen(Text):
    """A template expression for a text that the chart's user chooses. It may have any characters,
    so it is quoted if it is a whole value.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A value that a template renders only if a condition holds."""

    condition: Condition
    value: object


Truth = bool | Condition
Data = Any
"""Plain data, or a reference to a chart value."""
ABSENT = object()


def when(condition: Truth, value: object) -> object:
    """The value if the condition holds, else ABSENT. For a template, the value with the
    condition.
    """
    if isinstance(condition, Condition):
        return Part(condition, value)
    return value if condition else ABSENT


def optional(value: Data) -> object:
    """The value, or ABSENT if it is empty. For a template, the value with this condition."""
    if isinstance(value, ValueReference | Text):
        return Part(Condition(value.expression), value)
    return value if value else ABSENT


def settled(value: Data) -> Data:
    """A copy of the data without ABSENT items, at every level."""
    if isinstance(value, Mapping):
        return {key: settled(item) for key, item in value.items() if item is not ABSENT}
    if isinstance(value, list | tuple):
        return [settled(item) for item in value if item is not ABSENT]
    return value
