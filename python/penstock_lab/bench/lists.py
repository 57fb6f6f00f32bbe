"""Parses lists of numbers on the command line: `1,2,4`, `1:9:2`, `1..64`, and pairs of lengths."""

from __future__ import annotations

import math

from penstock.core import InvalidValueError

FORMS = "numbers such as 1,2,4 or first:last:step or 1..125 (doubling, and 125)"
LONGEST = 10_000
"""Maximum number of entries in a range; a longer one is probably a typo."""


def parse_counts(flag: str, text: str) -> list[int]:
    """Integers >= 1 in the given order, without duplicates. InvalidValueError names `flag`."""
    numbers = parse_rates(flag, text)
    if not all(number.is_integer() for number in numbers):
        raise InvalidValueError(flag, text, f"whole {FORMS}")
    return [int(number) for number in numbers]


def parse_rates(flag: str, text: str) -> list[float]:
    """Positive numbers or `inf` in the given order, without duplicates. InvalidValueError names
    `flag`.
    """
    try:
        found = [value for word in text.split(",") for value in _item(word)]
    except ValueError:
        raise InvalidValueError(flag, text, FORMS) from None
    return list(dict.fromkeys(found))


def parse_pair(flag: str, text: str) -> tuple[int, int]:
    """`INPUT/OUTPUT` or `INPUT,OUTPUT` in tokens. InvalidValueError names `flag`."""
    words = text.replace(",", "/").split("/")
    if len(words) != 2 or not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise InvalidValueError(flag, text, "INPUT/OUTPUT in tokens, such as 200/1000")
    return int(words[0]), int(words[1])


def _item(word: str) -> list[float]:
    if ".." in word:
        first, last = (_number(end) for end in word.split(".."))
        return _doubling(first, last)
    if ":" in word:
        first, last, *rest = (_number(part) for part in word.split(":"))
        (step,) = rest or [1.0]
        return _stepping(first, last, step)
    return [_number(word)]


def _number(word: str) -> float:
    value = float(word)
    if not value > 0:
        raise ValueError
    return value


def _doubling(first: float, last: float) -> list[float]:
    if not first <= last < math.inf:
        raise ValueError
    powers = range(math.floor(math.log2(last / first)) + 1)
    return [*(math.ldexp(first, power) for power in powers), last]


def _stepping(first: float, last: float, step: float) -> list[float]:
    if not (first <= last < math.inf and (last - first) / step < LONGEST):
        raise ValueError
    # Compute each step from its index, with a tolerance, so that 0.1:0.7:0.1 includes 0.7.
    return [first + index * step for index in range(math.floor((last - first) / step + 1e-9) + 1)]
