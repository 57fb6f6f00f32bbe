"""Parses and formats Kubernetes resource quantities: `500m`, `16Gi`, `1e3`."""

from __future__ import annotations

import re
from fractions import Fraction

SUFFIXES = {
    **{letter + "i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
}
QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))")
IN_BYTES = ("memory", "storage", "ephemeral-storage", "hugepages-")
GIB, MIB = 2**30, 2**20


def quantity(text: object) -> Fraction:
    """The number that a quantity means (`500m` is 1/2); 0 if malformed."""
    found = QUANTITY.fullmatch(str(text))
    if found is None:
        return Fraction(0)
    number, exponent, suffix = found.groups()
    try:
        return Fraction(number + (exponent or "")) * SUFFIXES[suffix or ""]
    except ValueError:
        return Fraction(0)


def shown(resource: str, amount: Fraction) -> str:
    """An amount of a resource for people: memory and storage in GiB or MiB, others as plain
    numbers.
    """
    if resource.startswith(IN_BYTES):
        if abs(amount) >= GIB:
            return f"{float(amount / GIB):.1f} GiB"
        return f"{float(amount / MIB):.0f} MiB"
    return f"{float(amount):g}"
