"""The named models on this machine: their disk space, and their removal."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.config import HubSettings, hub_settings
from penstock.core import InvalidValueError, PenstockError, did_you_mean
from penstock.hub import names
from penstock.hub.aliases import ALIASES, OnHub, Packaged, canonical_alias
from penstock.hub.cache import INCOMPLETE, PREFIX, CachedRepository, is_locked
from penstock.hub.errors import HubError, shown
from penstock.hub.listing import SHA1, RemoteFile
from penstock.hub.names import GGUF, HubName
from penstock.hub.urls import ORIGIN, FromUrl, of_url, urls_directory

CONFIG = "config.json"
MOST_CONFIG = 1 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """One model on this machine."""

    name: str
    """Argument for `penstock serve`."""
    quantisation: str
    """Quantisation according to the file's name, or number type of config.json; empty if neither
    has it.
    """
    size: int
    """Size on disk in bytes."""
    path: Path
    state: str
    """Empty, or the reason why the model cannot be served in its present state."""
    alias: str = ""


def stored(settings: HubSettings | None = None) -> list[Stored]:
    """All models in the caches, sorted by name."""
    settings = settings or hub_settings()
    found = [*_packaged(), *_on_hub(settings.cache), *_from_urls()]
    return sorted(found, key=lambda one: one.name.lower())


def remove(model: str, settings: HubSettings | None = None) -> tuple[int, Path]:
    """Remove a model from the caches; returns the number of freed bytes and their location. Files
    outside the caches, and blobs that another model uses, stay. Raises PenstockError.
    """
    settings = settings or hub_settings()
    model = canonical_alias(model)
    known = ALIASES.get(model)
    if isinstance(known, Packaged):
        if not known.path.is_file():
            raise PenstockError(f"{model} is not at {known.path}")
        size = known.path.stat().st_size
        known.path.unlink()
        return size, known.path
    named = known.name if known is not None else names.parse(model, settings.endpoint)
    if named is not None:
        repository = CachedRepository(settings.cache, named.repository)
        if repository.folder.is_dir():
            return _remove_repository(repository, named)
    if model.startswith(("http://", "https://")) and named is None:
        return _remove_url(of_url(model))
    if os.path.exists(model):
        raise InvalidValueError("NAME", model, "a model of the caches; a path is removed by `rm`")
    here = [each for one in stored(settings) for each in (one.name, one.alias) if each]
    raise PenstockError(
        f"{shown(model, 200)} is not in the caches (`penstock models` lists what is)"
        f"{did_you_mean(model, here)}"
    )


def _packaged() -> Iterator[Stored]:
    for alias, known in ALIASES.items():
        if isinstance(known, Packaged) and known.path.is_file():
            quantisation = names.quantisation(known.file) or ""
            yield Stored(alias, quantisation, known.path.stat().st_size, known.path, "", alias)


def _on_hub(cache: Path) -> Iterator[Stored]:
    with contextlib.suppress(OSError):
        for folder in sorted(cache.iterdir()):
            name = folder.name.removeprefix(PREFIX).replace("--", "/")
            if folder.name.startswith(PREFIX) and names.REPOSITORY.fullmatch(name):
                yield from _of_repository(CachedRepository(cache, name))


def _of_repository(repository: CachedRepository) -> Iterator[Stored]:
    current = repository.commit(None)
    for commit in _commits(repository):
        mark = "" if commit == current else f"revision {commit[:8]}"
        present = repository.present(commit)
        top = repository.snapshot(commit)
        for first, files in names.gguf_models(present).items():
            yield _gguf(repository.name, top, first, [present[file] for file in files], mark)
        if CONFIG in present:
            yield _directory(repository.name, top, present, mark)
    parts = [part for part in repository.blobs.glob(f"*{INCOMPLETE}") if part.is_file()]
    if parts:
        size = sum(part.stat().st_size for part in parts)
        state = "begun: `penstock pull` continues it"
        yield Stored(repository.name, "", size, repository.blobs, state)


def _gguf(name: str, top: Path, first: str, files: list[RemoteFile], mark: str) -> Stored:
    quantisation = names.quantisation(first)
    variant = quantisation or first
    count = names.PART.search(first[: -len(GGUF)])
    lacks = int(count[2]) - len(files) if count else 0
    state = f"lacks {lacks} of {int(count[2])} parts" if count and lacks else mark
    alias = _alias(HubName(name, variant))
    size = sum(file.size for file in files)
    return Stored(f"{name}:{variant}", quantisation or "", size, top / first, state, alias)


def _directory(name: str, top: Path, present: dict[str, RemoteFile], mark: str) -> Stored:
    weights = [file for file in present.values() if file.name.endswith(".safetensors")]
    others = sum(file.size for file in present.values() if not file.name.endswith(GGUF))
    state = mark if weights else "no weights"
    return Stored(name, _number_type(top / CONFIG), others, top, state)


def _number_type(config: Path) -> str:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if config.stat().st_size <= MOST_CONFIG:
            content = json.loads(config.read_bytes())
            quantised = content.get("quantization_config") or {}
            told = quantised.get("quant_method") or content.get("torch_dtype")
            return shown(told or content.get("dtype") or "", 20)
    return ""


def _from_urls() -> Iterator[Stored]:
    for origin in sorted(urls_directory().glob(f"*/{ORIGIN}")):
        url = ""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            url = shown(json.loads(origin.read_text(encoding="utf-8")).get("url", ""), 200)
        for path in sorted(origin.parent.iterdir()):
            whole = path.name.endswith(GGUF)
            if whole or path.name.endswith(f"{GGUF}{INCOMPLETE}"):
                state = "" if whole else "begun: `penstock pull` continues it"
                quantisation = names.quantisation(path.name.removesuffix(INCOMPLETE)) or ""
                yield Stored(url or path.name, quantisation, path.stat().st_size, path, state)


def _alias(name: HubName) -> str:
    found = (alias for alias, known in ALIASES.items() if isinstance(known, OnHub))
    return next((alias for alias in found if ALIASES[alias].source == str(name)), "")


def _commits(repository: CachedRepository) -> list[str]:
    try:
        made = sorted(each.name for each in (repository.folder / "snapshots").iterdir())
    except OSError:
        return []
    return [name for name in made if SHA1.fullmatch(name)]


def _remove_repository(repository: CachedRepository, name: HubName) -> tuple[int, Path]:
    if repository.folder.is_symlink():
        raise HubError(f"{name}: {repository.folder} is a link; remove what it links to yourself")
    if name.variant is None:
        _refuse_locked(repository, name, repository.locks.glob("*.lock"))
        freed = sum(_own_size(blob) for blob in repository.folder.rglob("*"))
        shutil.rmtree(repository.folder)
        shutil.rmtree(repository.locks, ignore_errors=True)
        return freed, repository.folder
    links = [
        repository.snapshot(commit) / file.name
        for commit in _commits(repository)
        for file in _selected(repository, commit, name)
    ]
    if not links:
        raise HubError(f"{name}: {repository.folder} has no such file (see `penstock models`)")
    blobs = {_target(link) for link in links if link.is_symlink()}
    locks = (repository.locks / f"{blob.name}.lock" for blob in blobs)
    _refuse_locked(repository, name, locks)
    freed = sum(_own_size(link) for link in links)
    for link in links:
        link.unlink()
    used = _used_blobs(repository)
    for blob in blobs:
        if blob not in used and blob.parent == Path(os.path.abspath(repository.blobs)):
            freed += _own_size(blob)
            blob.unlink(missing_ok=True)
    _tidy(repository)
    return freed, repository.folder


def _selected(repository: CachedRepository, commit: str, name: HubName) -> list[RemoteFile]:
    """The files of one commit that a name with a variant selects, even if parts are missing."""
    present = repository.present(commit)
    models = names.gguf_models(present)
    wanted = (name.variant or "").upper()
    return [
        present[file]
        for first, files in models.items()
        if wanted in ((names.quantisation(first) or "").upper(), first.upper())
        or wanted in {Path(file).name.upper() for file in files}
        for file in files
    ]


def _refuse_locked(repository: CachedRepository, name: HubName, locks: Iterator[Path]) -> None:
    if any(is_locked(lock) for lock in locks):
        raise HubError(f"{name}: a process downloads to {repository.folder}; stop it first")


def _own_size(path: Path) -> int:
    """Bytes freed by the removal of a path: none for a link."""
    return 0 if path.is_symlink() or not path.is_file() else path.stat().st_size


def _used_blobs(repository: CachedRepository) -> set[Path]:
    links = (repository.folder / "snapshots").rglob("*")
    return {_target(link) for link in links if link.is_symlink()}


def _target(link: Path) -> Path:
    """The blob that a file of a snapshot links to. The blob may be a link itself."""
    return Path(os.path.abspath(link.parent / os.readlink(link)))


def _tidy(repository: CachedRepository) -> None:
    """Remove empty snapshots, references to them, and the repository if no snapshot is left."""
    for commit in _commits(repository):
        top = repository.snapshot(commit)
        for directory, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
    left = set(_commits(repository))
    if not left:
        shutil.rmtree(repository.folder)
        shutil.rmtree(repository.locks, ignore_errors=True)
        return
    for path in (repository.folder / "refs").rglob("*"):
        if path.is_file() and path.read_text(encoding="utf-8").strip() not in left:
            path.unlink()
    for path in (repository.folder / "trees").glob("*.json"):
        if path.stem not in left:
            path.unlink()


def _remove_url(file: FromUrl) -> tuple[int, Path]:
    own = [path for path in (file.path, file.part) if path.is_file()]
    if not own:
        raise PenstockError(f"{file.name} is not at {file.path}")
    if is_locked(file.directory / ".lock"):
        raise PenstockError(f"{file.name}: a process downloads it; stop it first")
    freed = sum(_own_size(path) for path in own)
    shutil.rmtree(file.directory)
    return freed, file.directory
