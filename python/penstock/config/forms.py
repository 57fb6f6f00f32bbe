"""Schemas of documents written by other commands, such as plan.yaml: types and bounds of the
members that are read.

Members that a schema does not list are intended for other readers, and are not checked.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.config.documents import read_document
from penstock.core import PenstockError, shortened

SCHEMA = 1
"""Schema version of plan.yaml."""
REMEDY = "make the plan again: penstock plan MODEL ... -o"
MOST = 2**62
"""Maximum that is accepted for numbers of bytes, seconds and tokens."""
CONTROL = {"Cc": "a control character", "Cs": "a part of a character"} | dict.fromkeys(
    ("Zl", "Zp"), "a line break"
)
"""Unicode categories that are invalid in names, paths and addresses, each in words for errors."""

Form = Callable[[str, object], None]
"""A schema: a function of a key and its value that raises PenstockError if the value is wrong."""


def read_plan(path: Path, form: Form) -> Mapping[str, Any]:
    """Read a deployment plan (plan.yaml) and check it against `form`. Raises PenstockError, which
    names file, key and remedy.
    """
    remedy = f"{REMEDY} {path}"
    try:
        found = read_document(path)
    except PenstockError as error:
        raise PenstockError(f"{error}; {remedy}") from None
    if found.get("schema") != SCHEMA:
        raise PenstockError(f"{path}: not a plan of schema {SCHEMA}; {remedy}")
    try:
        form("", found)
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}; {remedy}") from None
    return found


def control_character(text: str) -> str:
    """The first character of `text` whose category is in CONTROL, as a description with its
    position; empty if there is none.
    """
    for place, character in enumerate(text):
        if what := CONTROL.get(unicodedata.category(character)):
            return f"{what}, U+{ord(character):04X}, as character {place + 1}"
    return ""


def wrong_value(key: str, value: object, expected: str) -> PenstockError:
    try:
        said = repr(value)
    except (ValueError, RecursionError):
        said = "of a length that cannot be printed"
    return PenstockError(f"{key or 'the plan'} is {shortened(said)}, expected {expected}")


def text(characters: str = "", *, empty: bool = False) -> Form:
    """Schema of one line of text; `characters`, if given, are the only ones allowed. With `empty`,
    it may be empty.
    """

    def check(key: str, value: object) -> None:
        if not isinstance(value, str) or not (value or empty):
            raise wrong_value(key, value, "a text" if empty else "a text that is not empty")
        if wrong := control_character(value):
            raise wrong_value(key, value, f"a text without control characters; it has {wrong}")
        if characters and not set(value) <= set(characters):
            raise wrong_value(key, value, f"characters of {characters}")

    return check


def one_of(*names: str) -> Form:
    def check(key: str, value: object) -> None:
        if not isinstance(value, str) or value not in names:
            raise wrong_value(key, value, f"one of {', '.join(names)}")

    return check


def count(least: int = 0, most: int = MOST) -> Form:
    def check(key: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise wrong_value(key, value, f"a whole number of {least} to {most}")

    return check


def number(least: float = 0.0, most: float = float(MOST)) -> Form:
    def check(key: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_value(key, value, f"a number of {least:g} to {most:g}")
        if not least <= value <= most:
            raise wrong_value(key, value, f"a number of {least:g} to {most:g}")

    return check


def truth(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise wrong_value(key, value, "true or false")


def or_null(form: Form) -> Form:
    return lambda key, value: None if value is None else form(key, value)


def rows(form: Form, *, least: int = 0) -> Form:
    def check(key: str, value: object) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise wrong_value(key, value, "a list" + (" that is not empty" if least else ""))
        for place, item in enumerate(value):
            form(f"{key}.{place}", item)

    return check


def table(names: Form, form: Form) -> Form:
    """Schema of a mapping with any members, whose names must match `names` and whose values must
    match `form`.
    """

    def check(key: str, value: object) -> None:
        if not isinstance(value, dict):
            raise wrong_value(key, value, "a mapping")
        for name, item in value.items():
            names(f"a name in {key}", name)
            form(f"{key}.{name}", item)

    return check


def members(needed: Mapping[str, Form], possible: Mapping[str, Form] | None = None) -> Form:
    def check(key: str, value: object) -> None:
        if not isinstance(value, dict):
            raise wrong_value(key, value, "a mapping")
        prefix = f"{key}." if key else ""
        for name, form in {**needed, **(possible or {})}.items():
            if name in value:
                form(f"{prefix}{name}", value[name])
            elif name in needed:
                raise PenstockError(f"{prefix}{name} is missing")

    return check
