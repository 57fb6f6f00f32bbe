"""Errors of downloads, and sanitising of foreign text and URLs in their messages."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.core import PenstockError, shortened

MOST_WORDS = 300


class HubError(PenstockError):
    """A named model cannot be obtained. The message names repository, file, cause and remedy."""


class UnreachableError(HubError):
    """The hub does not respond, or is temporarily unable to answer."""


def shown(text: object, most: int = MOST_WORDS) -> str:
    """Foreign text for a message: on one line, with control characters escaped, truncated."""
    plain = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in shortened(str(text), most)
    )
    return shortened(plain, most)


def address(url: str) -> str:
    """A URL for a message, without its query, which may contain a signature."""
    parts = urlsplit(url)
    return shown(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
