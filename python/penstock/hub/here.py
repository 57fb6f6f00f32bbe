"""Models of a hub that are on this machine. Opens no connection, and imports nothing for one: most
starts need none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from penstock.config import HubSettings
from penstock.core.progress import size as in_units
from penstock.hub.cache import CachedRepository
from penstock.hub.errors import HubError
from penstock.hub.listing import Listing
from penstock.hub.names import HubName, Selection

Select = Callable[[Listing, HubName], Selection]
"""Chooses the files of a model: `names.select` or `names.select_config`."""


class Fetched:
    """A model whose files are here."""

    def __init__(self, directory: Path, selection: Selection) -> None:
        self.directory = directory
        self.selection = selection

    @property
    def path(self) -> Path:
        main = self.selection.main
        return self.directory if main is None else self.directory / main


def cached(
    name: HubName, revision: str | None, settings: HubSettings, select: Select
) -> Fetched | None:
    """The model, if all its files are here; None if some are missing, or if it is not known which
    there are. Opens no connection.
    """
    found = CachedRepository(settings.cache, name.repository)
    commit = found.commit(name.revision or revision)
    listing = found.listing(commit) if commit else None
    if commit is None or listing is None:
        return None
    try:
        selection = select(listing, name)
    except HubError:
        # A later commit may have it.
        return None
    if not all(found.has(commit, file) for file in selection.files):
        return None
    return Fetched(found.snapshot(commit), selection)


def guessed(
    name: HubName, revision: str | None, settings: HubSettings, select: Select
) -> Fetched | None:
    """The model as far as the cache tells without a listing of the hub: older tools of the hub keep
    none. None if files are missing for certain.
    """
    found = CachedRepository(settings.cache, name.repository)
    commit = found.commit(name.revision or revision)
    if commit is None or found.listing(commit) is not None:
        return None
    present = found.present(commit)
    try:
        selection = select(present, name)
    except HubError:
        return None
    if _weights_of_index(found.snapshot(commit)) - set(present):
        return None
    return Fetched(found.snapshot(commit), selection)


def missing(name: HubName, revision: str | None, settings: HubSettings, select: Select) -> str:
    """What the cache lacks of a model, in words."""
    found = CachedRepository(settings.cache, name.repository)
    commit = found.commit(name.revision or revision)
    listing = found.listing(commit) if commit else None
    if commit is None or listing is None:
        return f"nothing of it is in {settings.cache}"
    lacks = [file for file in select(listing, name).files if not found.has(commit, file)]
    named = ", ".join(f"{file.name} ({in_units(file.size)})" for file in lacks[:5])
    more = f" and {len(lacks) - 5} more" if len(lacks) > 5 else ""
    return f"{settings.cache} lacks {named}{more}"


def _weights_of_index(snapshot: Path) -> set[str]:
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        index = json.loads((snapshot / "model.safetensors.index.json").read_bytes())
        return set(map(str, index["weight_map"].values()))
    return set()
