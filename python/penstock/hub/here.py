"""Looks up a hub's models on this machine. It opens no connection and imports no network code,
because most starts need none.
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
    """A model whose files are in the cache."""

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
    """The model, if all its files are in the cache. None if files are missing, or if the list of
    its files is unknown. Opens no connection.
    """
    found = CachedRepository(settings.cache, name.repository)
    commit = found.commit(name.revision or revision)
    listing = found.listing(commit) if commit else None
    if commit is None or listing is None:
        return None
    try:
        selection = select(listing, name)
    except HubError:
        # A later commit may contain the missing file.
        return None
    if not all(found.has(commit, file) for file in selection.files):
        return None
    return Fetched(found.snapshot(commit), selection)


def guessed(
    name: HubName, revision: str | None, settings: HubSettings, select: Select
) -> Fetched | None:
    """The model as found in the cache without a listing of the hub, which older tools of the hub do
    not store. None if files are certainly missing.
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
    """Text that describes the files missing in the cache."""
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
