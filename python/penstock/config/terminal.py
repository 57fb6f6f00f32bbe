"""Capabilities of the user's terminal, and the user's preferences, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO


def moves_cursor(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal interprets escape sequences. It does not if $TERM is missing or
    `dumb`.
    """
    return environ.get("TERM", "") not in ("", "dumb")


def has_styles(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether bold and dim text is used. It is not if $NO_COLOR is set."""
    return moves_cursor(environ) and not environ.get("NO_COLOR")


def draws_blocks(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Unicode block characters are used: on a terminal whose encoding has them."""
    is_unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and is_unicode and moves_cursor(environ)
