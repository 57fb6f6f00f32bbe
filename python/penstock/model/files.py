"""Reads the small JSON files of a Hugging Face directory."""

import json
from pathlib import Path

from penstock.model.errors import ModelError

LARGEST_JSON = 256 << 20
"""Maximum size in bytes of a JSON file. The largest real ones are tokenizer.json files of about 20
MB.
"""


def read_object(file: Path) -> dict[str, object]:
    """The JSON object in `file`. Raises ModelError if the file cannot be read or contains no JSON
    object.
    """
    try:
        size = file.stat().st_size
        if size > LARGEST_JSON:
            raise ModelError(file, f"{size} bytes; at most {LARGEST_JSON} are read")
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(file, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(file, f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(file, "must hold a JSON object")
    return value


def read_optional_object(file: Path) -> dict[str, object]:
    """Like `read_object`, but returns an empty object if the file does not exist."""
    return read_object(file) if file.exists() else {}


_STARTS = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer in place of the file: fetch it, git lfs pull",
    ),
    (b"<!doctype html", "an HTML page, not the file that a download of it should have given"),
    (b"<html", "an HTML page, not the file that a download of it should have given"),
    (b"PK\x03\x04", "a ZIP archive, perhaps a checkpoint of PyTorch: convert it to safetensors"),
    (b"\x1f\x8b", "compressed with gzip: decompress it"),
)


def impostor(file: Path) -> str | None:
    """Description of a file that is clearly not a model: empty, a Git LFS pointer, a web page. None
    for all other files.
    """
    try:
        with file.open("rb") as opened:
            start = opened.read(64).lstrip().lower()
    except OSError as error:
        raise ModelError(file, error.strerror or str(error)) from error
    if not start:
        return "empty: the download was interrupted, or the disk was full"
    return next((what for mark, what in _STARTS if start.startswith(mark.lower())), None)


def weight_map(index: Path) -> dict[str, str]:
    """Name of the file that has each tensor, from `model.safetensors.index.json`."""
    owners = read_object(index).get("weight_map")
    if not isinstance(owners, dict) or not all(isinstance(file, str) for file in owners.values()):
        raise ModelError(index, "weight_map must be an object that names the file of each tensor")
    return owners


def tensor_names(directory: Path) -> set[str]:
    """Names of the tensors in a directory's safetensors files; empty without weights."""
    index, whole = (directory / f"model.safetensors{end}" for end in (".index.json", ""))
    if index.is_file():
        return set(weight_map(index))
    names = safetensors_header(whole) if whole.exists() else ()
    return set(names) - {"__metadata__"}


def stored_names(directory: Path) -> set[str]:
    """Like `tensor_names`, but empty for damaged files, which the decoder reports."""
    try:
        return tensor_names(directory)
    except ModelError:
        return set()


def tensor_shape(directory: Path, name: str) -> tuple[int, ...] | None:
    """The shape of a tensor in a directory's safetensors files; None if no file has it."""
    index = directory / "model.safetensors.index.json"
    owner = weight_map(index).get(name) if index.is_file() else "model.safetensors"
    if owner is None or not (directory / owner).exists():
        return None
    row = safetensors_header(directory / owner).get(name)
    shape = row.get("shape") if isinstance(row, dict) else None
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        return None
    return tuple(shape)


def safetensors_header(file: Path) -> dict[str, object]:
    """The JSON header of a safetensors file. Raises ModelError."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > LARGEST_JSON:
                raise ModelError(file, f"a header of {size} bytes; at most {LARGEST_JSON} are read")
            header = json.loads(opened.read(size))
    except OSError as error:
        raise ModelError(file, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(file, f"the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(file, "the header is not a JSON object")
    return header
