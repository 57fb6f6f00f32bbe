"""Errors of parsers: output of a tool in another form than the one that was expected."""

from __future__ import annotations

from penstock.core import PenstockError


class ParseError(PenstockError):
    """The text of a source has another form than expected. The check's finding is UNKNOWN."""

    def __init__(self, line: int, text: str, expected: str) -> None:
        super().__init__(f"line {line}: {text[:80]!r}, expected {expected}")
