"""Forms of documents that other commands wrote: types and bounds of the members that are read.

Members that are not listed are for other readers, and are not looked at.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.config.documents import read_document
from penstock.core import PenstockError, shortened

SCHEMA = 1
"""Version of the form of plan.yaml."""
REMEDY = "make the plan again: penstock plan MODEL ... -o"
MOST = 2**62
"""The largest number of bytes, seconds and tokens."""
CONTROL = {"Cc": "a control character", "Cs": "a part of a character"} | dict.fromkeys(
    ("Zl", "Zp"), "a line break"
)
"""Categories of what no name, path or address has."""

Form = Callable[[str, object], None]
"""Says by PenstockError what is wrong with the value at a key."""


def read_plan(path: Path, form: Form) -> Mapping[str, Any]:
    """A plan, which has the form. PenstockError names the file, the key and the remedy."""
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
    """What is wrong with a text that has a character of CONTROL, and where; else nothing."""
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
    """One line; of these characters alone where they are given."""

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
    """Any members with such names."""

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
