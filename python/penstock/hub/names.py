"""Syntax of model names, and the files of a repository that a name selects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from penstock.core import did_you_mean, shortened
from penstock.hub.errors import HubError, shown
from penstock.hub.listing import Listing, RemoteFile, is_safe

_WORD = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,95}"
REPOSITORY = re.compile(rf"{_WORD}/{_WORD}")
NAME = re.compile(
    rf"(?:(?:hf\.co|huggingface\.co)/)?({_WORD}/{_WORD})(?::([A-Za-z0-9_./-]{{1,255}}))?"
)
HUBS = {"huggingface.co", "www.huggingface.co", "hf.co"}
GGUF = ".gguf"
PART = re.compile(r"-(\d{5})-of-(\d{5})$")
"""Suffix, before the extension, of one part of a split file."""
QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d[A-Z0-9_]*|TQ\d[A-Z0-9_]*|MXFP4(?:_MOE)?|BF16|F16|F32|FP16|FP32))"
    r"(?=$|[-./])",
    re.IGNORECASE,
)
CONFIG_FILES = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")
"""Files of a model that `penstock plan` needs. The last one contains the size of the weights."""
TOKENIZERS = ("tokenizer.json", "tiktoken.model")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tiktoken.model")
HUB_COPIES = ("original/*", "metal/*")
"""Patterns of files that are not downloaded: copies of the weights for other programs, found in
some repositories.
"""
PREFERRED = ("Q4_K_M", "MXFP4", "Q4_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q8_0")
"""Default quantisations of a repository of GGUF files, in order of preference."""
MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class HubName:
    """`org/repo`, optionally with a quantisation or a file of the repository."""

    repository: str
    variant: str | None = None
    """A quantisation such as Q4_K_M, or the name of a GGUF file."""
    revision: str | None = None
    """Branch, tag or commit, if the name contains one (as a URL of the hub may)."""

    def __str__(self) -> str:
        return self.repository + (f":{self.variant}" if self.variant else "")


@dataclass(frozen=True, slots=True)
class Selection:
    """Files of a repository that make one model."""

    files: tuple[RemoteFile, ...]
    main: str | None
    """The GGUF file to load (the first part of a split one); None for the whole directory."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def parse(text: str, endpoint: str = "") -> HubName | None:
    """Parse `org/repo`, `org/repo:QUANT`, `org/repo:FILE.gguf`, or the URL of a repository or file
    on the hub or at `endpoint`. Returns None for other texts.
    """
    if text.startswith(("http://", "https://")):
        return _of_address(text, endpoint)
    found = NAME.fullmatch(text)
    if found is None or ".." in text or "--" in found[1]:
        return None
    variant = found[2]
    if variant is not None and ("/" in variant and not variant.lower().endswith(GGUF)):
        return None
    return HubName(found[1], variant)


def _of_address(text: str, endpoint: str) -> HubName | None:
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        return None
    if host not in HUBS and not (endpoint and text.startswith(f"{endpoint}/")):
        return None
    base = urlsplit(endpoint).path if host not in HUBS else ""
    words = unquote(parts.path.removeprefix(base)).strip("/").split("/")
    repository = "/".join(words[:2])
    if not REPOSITORY.fullmatch(repository) or "--" in repository or not is_safe(repository):
        return None
    if len(words) == 2:
        return HubName(repository)
    kind, rest = words[2], words[3:]
    if kind in ("tree", "resolve", "blob") and len(rest) == 1:
        return HubName(repository, None, rest[0])
    if kind in ("resolve", "blob") and len(rest) > 1 and rest[-1].lower().endswith(GGUF):
        return HubName(repository, "/".join(rest[1:]), rest[0])
    return None


def quantisation(file: str) -> str | None:
    """The quantisation in a GGUF file's name, such as Q4_K_M; None if the name has none."""
    stem = PART.sub("", _stem(file))
    found = [each[1] for each in QUANTISATION.finditer(stem)]
    return found[-1].upper() if found else None


def is_model(file: str) -> bool:
    """Whether a GGUF file is a model according to its name, and not the image encoder of one
    (mmproj) or quantisation statistics (imatrix).
    """
    lower = file.lower()
    return lower.endswith(GGUF) and "mmproj" not in lower and "imatrix" not in lower


def gguf_models(listing: Listing) -> dict[str, list[str]]:
    """The GGUF models of a repository: for each file to load, all files of its model."""
    found: dict[str, list[str]] = {}
    for name in sorted(listing):
        if not is_model(name):
            continue
        part = PART.search(_stem(name))
        first = name if part is None else f"{_whole(name)}-00001-of-{part[2]}{GGUF}"
        found.setdefault(first, []).append(name)
    return found


def select(listing: Listing, name: HubName) -> Selection:
    """The files of the model `name`. Raises HubError if no model matches, or several do."""
    if name.variant is not None:
        return _gguf(listing, name, _named(listing, name, name.variant))
    taken = tuple(listing[file] for file in sorted(listing) if _is_needed(file))
    if any(file.name == "config.json" for file in taken) and any(
        file.name.endswith(".safetensors") for file in taken
    ):
        return Selection(taken, None)
    models = gguf_models(listing)
    if not models:
        raise HubError(
            f"{name}: the repository has neither safetensors with a config.json nor GGUF files; "
            f"it has {_some(sorted(listing))}"
        )
    if len(models) == 1:
        return _gguf(listing, name, next(iter(models)))
    for wanted in PREFERRED:
        fitting = [file for file in models if quantisation(file) == wanted]
        if len({_whole(file) for file in fitting}) == 1:
            return _gguf(listing, name, min(fitting, key=len))
    raise HubError(f"{name}: which of its GGUF files? Add one of {_variants(models, name)}")


def select_config(listing: Listing, name: HubName) -> Selection:
    """The files with a model's dimensions. Raises HubError without a config.json."""
    if CONFIG_FILES[0] not in listing:
        raise HubError(
            f"{name}: the repository has no {CONFIG_FILES[0]}; it has {_some(sorted(listing))}"
        )
    return Selection(tuple(listing[file] for file in CONFIG_FILES if file in listing), None)


def select_without_weights(listing: Listing, name: HubName) -> Selection:
    """The files of a model without its weights. Raises HubError without a config.json."""
    select_config(listing, name)
    needed = (listing[file] for file in sorted(listing) if _is_needed(file))
    return Selection(tuple(file for file in needed if not _is_weight(file.name)), None)


def _is_weight(file: str) -> bool:
    return file.endswith(".safetensors")


def select_tokenizer(listing: Listing, name: HubName) -> Selection:
    """The files of a model's tokenizer, without weights if the tokenizer has separate files."""
    if name.variant is None and any(file in listing for file in TOKENIZERS):
        needed = (
            listing[file] for file in sorted(listing) if _is_needed(file) and not _is_weight(file)
        )
        return Selection(tuple(needed), None)
    return select(listing, name)


def _is_needed(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in HUB_FILES) and not any(
        fnmatch(file, pattern) for pattern in HUB_COPIES
    )


def _named(listing: Listing, name: HubName, variant: str) -> str:
    """The GGUF file to load for a quantisation or a file name."""
    if "mmproj" in variant.lower():
        raise HubError(
            f"{name}: mmproj files are the image part of a model, and images are not supported; "
            "name the model's own file"
        )
    models = gguf_models(listing)
    if variant.lower().endswith(GGUF):
        for first, files in models.items():
            if variant in files or variant in (PurePosixPath(file).name for file in files):
                return first
        raise HubError(
            f"{name.repository}: no file {variant}{did_you_mean(variant, models)}; it has "
            f"{_some(list(models))}"
        )
    wanted = variant.upper()
    for spelling in (wanted, f"UD-{wanted}"):
        fitting = [file for file in models if quantisation(file) == spelling]
        if len({_whole(file) for file in fitting}) == 1:
            # Some repositories have the same model both in one file and in parts.
            return min(fitting, key=len)
        if fitting:
            raise HubError(
                f"{name}: several files are in {spelling}: name one, as {name.repository}:"
                f"{PurePosixPath(fitting[0]).name} ({_some(fitting)})"
            )
    known = {found for file in models if (found := quantisation(file))}
    if not models:
        raise HubError(f"{name}: the repository has no GGUF files; leave out :{variant}")
    raise HubError(
        f"{name}: none of its GGUF files is in {variant}{did_you_mean(variant, known)}; it has "
        f"{_variants(models, name)}"
    )


def _gguf(listing: Listing, name: HubName, first: str) -> Selection:
    """The model with this file or first part. Raises HubError if a part is missing."""
    part = PART.search(_stem(first))
    if part is None:
        return Selection((listing[first],), first)
    count = int(part[2])
    parts = [f"{_whole(first)}-{i:05}-of-{part[2]}{GGUF}" for i in range(1, count + 1)]
    missing = [each for each in parts if each not in listing]
    if missing or not parts:
        raise HubError(
            f"{name}: the repository lacks {len(missing)} of {count} parts of the split file: "
            f"{_some(missing)}"
        )
    return Selection(tuple(listing[each] for each in parts), first)


def _variants(models: dict[str, list[str]], name: HubName) -> str:
    known = sorted({found for file in models if (found := quantisation(file))})
    if known:
        return f"{_some(known)} (`{name.repository}:{known[0]}`)"
    return f"{_some(list(models))} (`{name.repository}:FILE`)"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return shown(", ".join(shortened(each, 100) for each in names[:MOST_NAMED]), 600) + more


def _stem(file: str) -> str:
    return file[: -len(GGUF)] if file.lower().endswith(GGUF) else file


def _whole(file: str) -> str:
    """The file name without its suffix and part number."""
    return PART.sub("", _stem(file))
