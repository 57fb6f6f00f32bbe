"""Sampling settings that `/set` and `/load` accept, with their ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.cli.chat.client import ChatError
from penstock.cli.parser import did_you_mean
from penstock.core import shortened

Number = int | float


@dataclass(frozen=True)
class Setting:
    """A number sent with each request. `fits` returns whether a value is valid, and `range`
    describes the valid values in words.
    """

    kind: type[int] | type[float]
    range: str
    fits: Callable[[Number], bool]

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, self.kind)):
            return False
        assert isinstance(value, (int, float))
        return math.isfinite(value) and self.fits(value)


SETTINGS: Mapping[str, Setting] = {
    "temperature": Setting(float, "a number of at least 0", lambda value: value >= 0),
    "top_p": Setting(float, "a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": Setting(int, "an integer from 1, or 0 for all tokens", lambda k: 0 <= k < 2**31),
    "min_p": Setting(float, "a number from 0 to 1", lambda value: 0 <= value <= 1),
    "max_tokens": Setting(int, "an integer of at least 1", lambda n: 1 <= n < 2**31),
    "seed": Setting(int, "an integer from 0 to 2^63 - 1", lambda seed: 0 <= seed < 2**63),
}


def named(name: str) -> Setting:
    """The setting of this name. For an unknown name raises ChatError, which lists all names."""
    if name not in SETTINGS:
        raise ChatError(
            f"no setting {shortened(name)}{did_you_mean(name, SETTINGS)} ({', '.join(SETTINGS)})"
        )
    return SETTINGS[name]


def read(name: str, text: str) -> Number:
    """Parse the value `text`. Raises ChatError, with the valid range, for an invalid one."""
    setting = named(name)
    try:
        value = setting.kind(text)
    except ValueError:
        value = math.nan
    return check(name, value, text)


def check(name: str, value: object, text: str | None = None) -> Number:
    """`value` if the setting accepts it. Raises ChatError, with `text` and the range, otherwise."""
    setting = named(name)
    if not setting.accepts(value):
        shown = shortened(repr(value) if text is None else text)
        raise ChatError(f"{name} is {shown}, expected {setting.range}")
    assert isinstance(value, (int, float))
    return value
