"""Errors of downloads, and words and addresses of other parties in them."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.core import PenstockError, shortened

MOST_WORDS = 300


class HubError(PenstockError):
    """A model cannot be had by its name. The message names repository, file, cause and remedy."""


class UnreachableError(HubError):
    """The hub does not answer, or has no answer now."""


def shown(text: object, most: int = MOST_WORDS) -> str:
    """Text of another party for a message: on one line, control characters escaped, truncated."""
    plain = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in shortened(str(text), most)
    )
    return shortened(plain, most)


def address(url: str) -> str:
    """An address for a message, without its query, which may have a signature in it."""
    parts = urlsplit(url)
    return shown(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
