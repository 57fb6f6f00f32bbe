"""Models given by a URL of any server: one GGUF file, stored below the cache of `penstock pull`."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from penstock.config import cache_directory
from penstock.core import PenstockError
from penstock.hub.errors import address, shown
from penstock.hub.listing import is_safe
from penstock.hub.names import GGUF, is_model

ORIGIN = "origin.json"


def urls_directory() -> Path:
    return cache_directory() / "urls"


@dataclass(frozen=True, slots=True)
class FromUrl:
    """Location on disk of a file downloaded from `url`."""

    url: str
    name: str

    @property
    def directory(self) -> Path:
        return urls_directory() / hashlib.sha256(self.url.encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        """Path of the file, which exists only if it is complete."""
        return self.directory / self.name

    @property
    def part(self) -> Path:
        return self.directory / f"{self.name}.incomplete"


def of_url(text: str) -> FromUrl:
    """Location of the file at a URL. Raises PenstockError if its name is not the name of a GGUF
    file.
    """
    try:
        parts = urlsplit(text)
        name, host = PurePosixPath(unquote(parts.path)).name, parts.hostname
        _ = parts.port
    except ValueError as error:
        raise PenstockError(f"{address_of(text)}: not an address: {shown(error)}") from error
    if not host or not name.lower().endswith(GGUF) or not is_safe(name):
        raise PenstockError(
            f"{address_of(text)}: not the address of a GGUF file; a model is a *.gguf, or a "
            "repository of the hub as org/repo"
        )
    if not is_model(name):
        raise PenstockError(
            f"{address_of(text)}: {name} is not a model by its name (mmproj, imatrix); images are "
            "not supported"
        )
    return FromUrl(text, name)


def address_of(text: str) -> str:
    with contextlib.suppress(ValueError):
        return address(text)
    return shown(text, 100)
