"""Kinds of flag values. A kind parses a text, and describes the valid range for errors."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Protocol

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate("KMGT", start=1)}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG]?)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


def _no_constant(name: str) -> None:
    """Reject NaN and Infinity, which Python's JSON parser accepts although JSON has none."""
    raise ValueError(name)


class PartError(ValueError):
    """One part of a value is wrong, such as one option of a KV tier. The message continues a
    sentence that begins with the name of the part.
    """

    def __init__(self, said: str, name: str = "") -> None:
        super().__init__(said)
        self.name = name
        """Name of the wrong part, or empty."""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in a configuration file in place of a text, such as the options of a KV tier."""

    setting: str
    """Key of the setting whose value is the mapping."""
    place: str
    """File and line."""
    words: tuple[tuple[str, str], ...]
    """Keys of the mapping (with `-` instead of `_`) and their values as text."""
    places: tuple[str, ...]
    """File and line of each value."""

    def place_of(self, name: str) -> str:
        """Prefix for errors about the value of `name`: its file and line (or those of the section
        if it has no such key), and the setting.
        """
        named = zip(self.words, self.places, strict=True)
        place = next((place for (word, _), place in named if word == name), self.place)
        return f"{place}: {self.setting}"


class Kind(Protocol):
    def parse(self, text: str) -> object:
        """The value of `text`. Raises ValueError if it is outside the range, and PartError if one
        part of it is wrong.
        """

    def expected(self) -> str:
        """Description of the range, worded to follow "expected" in an error."""


@dataclass(frozen=True)
class Text:
    def parse(self, text: str) -> str:
        if not text:
            raise ValueError
        return text

    def expected(self) -> str:
        return "a text that is not empty"


@dataclass(frozen=True)
class JsonObject:
    """A JSON object, kept as text. A configuration file may write it as a mapping."""

    def parse(self, text: str) -> str:
        try:
            found = json.loads(text, parse_constant=_no_constant)
        except RecursionError as error:
            raise ValueError from error
        if not isinstance(found, dict):
            raise ValueError
        return text

    def expected(self) -> str:
        return 'a JSON object such as {"name": 1}, in a file a mapping as well'


@dataclass(frozen=True)
class Choice:
    values: tuple[str, ...]
    synonyms: tuple[tuple[str, str], ...] = ()
    """Alternative spellings, each with its value."""

    def parse(self, text: str) -> str:
        text = dict(self.synonyms).get(text, text)
        if text not in self.values:
            raise ValueError
        return text

    def expected(self) -> str:
        return "one of " + ", ".join(self.values)


@dataclass(frozen=True)
class Integer:
    low: int
    high: int

    def parse(self, text: str) -> int:
        value = int(text)
        if not self.low <= value <= self.high:
            raise ValueError
        return value

    def expected(self) -> str:
        return f"an integer in {self.low}..{self.high}"


@dataclass(frozen=True)
class Count:
    """An integer, also in vLLM's short forms: 4k is 4000, 4K is 4096, 1.5k is 1500."""

    low: int
    high: int
    none: tuple[str, ...] = ()
    """Texts for which `parse` returns None, which selects the default."""

    def parse(self, text: str) -> int | None:
        if text in self.none:
            return None
        match = _COUNT.fullmatch(text)
        if match is None:
            raise ValueError
        unit = match[2]
        base = 1000 if unit.islower() else 1024
        value = float(match[1]) * base ** " kmg".index(unit.lower() or " ")
        if not value.is_integer() or not self.low <= value <= self.high:
            raise ValueError
        return int(value)

    def expected(self) -> str:
        short = "".join(f", {text}" for text in self.none)
        return f"an integer in {self.low}..{self.high}, also as 4k (4000) or 4K (4096){short}"


@dataclass(frozen=True)
class IntegerChoice:
    values: tuple[int, ...]

    def parse(self, text: str) -> int:
        value = int(text)
        if value not in self.values:
            raise ValueError
        return value

    def expected(self) -> str:
        return "one of " + ", ".join(map(str, self.values))


@dataclass(frozen=True)
class Seconds:
    low: float
    high: float

    def parse(self, text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise ValueError
        return value

    def expected(self) -> str:
        return f"seconds in {self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class Share:
    def parse(self, text: str) -> float:
        value = float(text)
        if not 0.0 < value <= 1.0:
            raise ValueError
        return value

    def expected(self) -> str:
        return "a share above 0 and at most 1"


@dataclass(frozen=True)
class Url:
    schemes: tuple[str, ...]

    def parse(self, text: str) -> str:
        scheme, separator, _ = text.partition("://")
        if not separator or scheme not in self.schemes:
            raise ValueError
        return text

    def expected(self) -> str:
        return "a URL with " + ", ".join(f"{scheme}://" for scheme in self.schemes)


@dataclass(frozen=True)
class Bytes:
    """A size in bytes. `512M` is decimal, `512MiB` binary; the default unit is `B`."""

    low: int
    high: int

    def parse(self, text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        if match is None:
            raise ValueError
        value = float(match[1]) * _UNITS[match[2].upper()]
        if not self.low <= value <= self.high:
            raise ValueError
        return int(value)

    def expected(self) -> str:
        return f"bytes in {self.low}..{self.high}, also as 512M or 1GiB"


@dataclass(frozen=True)
class Switch:
    """`--name` or `--no-name`; true or false in files and the environment."""

    def parse(self, text: str) -> bool:
        lowered = text.lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise ValueError

    def expected(self) -> str:
        return "true or false"


def negative(name: str) -> str:
    """Name of the flag that negates the switch `name`."""
    return f"--no-{name.removeprefix('--')}"
