"""Kinds of flag values: how text becomes a value, and how the allowed range reads."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


class Kind(Protocol):
    def parse(self, text: str) -> object:
        """The value, or ValueError when the text is outside the range."""

    def expected(self) -> str:
        """The range, to follow "expected"."""


@dataclass(frozen=True)
class Text:
    def parse(self, text: str) -> str:
        if not text:
            raise ValueError
        return text

    def expected(self) -> str:
        return "a text that is not empty"


@dataclass(frozen=True)
class Choice:
    values: tuple[str, ...]

    def parse(self, text: str) -> str:
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
class Bytes:
    """A size in bytes. `512M` is decimal, `512MiB` binary; a lone `B` or none at all is bytes."""

    low: int
    high: int

    def parse(self, text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        if match is None:
            raise ValueError
        value = int(float(match[1]) * _UNITS[match[2].upper()])
        if not self.low <= value <= self.high:
            raise ValueError
        return value

    def expected(self) -> str:
        return f"bytes in {self.low}..{self.high}, also as 512M or 1GiB"


@dataclass(frozen=True)
class Switch:
    """`--name` and `--no-name`; in files and the environment true or false."""

    def parse(self, text: str) -> bool:
        lowered = text.lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise ValueError

    def expected(self) -> str:
        return "true or false"
