"""Errors of parsers: output of a tool in another form than the one that was expected."""

from __future__ import annotations

from penstock.core import PenstockError


class ParseError(PenstockError):
    """The text of a source has another form than expected. The check's finding is UNKNOWN. `place`
    is the path of the file, or the command.
    """

    def __init__(self, line: int, text: str, expected: str, place: str = "") -> None:
        head = f"{place}, line {line}" if place else f"line {line}"
        super().__init__(f"{head}: {text[:80]!r}, expected {expected}")
