"""What the files of a checkpoint contain, for a model that no family reads: keys, and tensors by
number type. Reads headers only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from penstock.core import PenstockError, shortened
from penstock.model.errors import ModelError
from penstock.model.files import read_object, safetensors_header
from penstock.model.gguf import TensorRow, native_reader
from penstock.model.load import CONFIG

LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True)
class Tensors:
    """All tensors of one number type."""

    tensors: int = 0
    numbers: int = 0
    bytes: int | None = 0
    """None for a GGUF file, whose header has no sizes."""


@dataclass(frozen=True, slots=True)
class Contents:
    file: str = ""
    """Name of the file with the fields."""
    fields: Mapping[str, object] = field(default_factory=dict)
    tensors: Mapping[str, Tensors] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        if self.fields:
            yield f"{self.file}:"
        for key, value in self.fields.items():
            yield f"  {printable(key)}: {shortened(json.dumps(value, default=str), LONGEST_VALUE)}"
        yield from tensor_lines(self.tensors)


def show_contents(name: str, error: PenstockError, *, as_json: bool) -> None:
    """Print what can be read of a model that raised `error`; nothing if there is nothing."""
    path = Path(name) if os.path.exists(name) else getattr(error, "file", None)
    contents = read_contents(path) if path is not None else Contents()
    if not contents.fields and not contents.tensors:
        return
    if as_json:
        found: dict[str, Any] = {"name": name, "supported": False, "unsupported": str(error)}
        print(json.dumps({**found, **asdict(contents)}, indent=2, default=str))
    else:
        print("\n".join(contents.lines()))


def read_contents(path: Path) -> Contents:
    """Contents of a GGUF file, or of a directory or its config.json. A file that is missing or
    damaged counts as empty.
    """
    if path.is_file() and path.suffix != ".json":
        return _gguf(path)
    directory = path if path.is_dir() else path.parent
    file = directory / CONFIG if path.is_dir() else path
    fields: Mapping[str, object] = {}
    tensors: dict[str, Tensors] = {}
    with suppress(ModelError):
        fields = read_object(file)
    for weights in sorted(directory.glob("*.safetensors")):
        with suppress(ModelError):
            _add_header(tensors, safetensors_header(weights))
    return Contents(file.name, fields, tensors)


def _add_header(tensors: dict[str, Tensors], header: Mapping[str, object]) -> None:
    for entry in header.values():
        match entry:
            case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
                if all(isinstance(size, int) for size in shape):
                    _add(tensors, kind, math.prod(shape), end - start)


def _gguf(path: Path) -> Contents:
    try:
        header = native_reader(str(path))
    except ValueError:
        return Contents()
    tensors: dict[str, Tensors] = {}
    for _, kind, shape in cast("list[TensorRow]", header["tensors"]):
        _add(tensors, kind, math.prod(shape), None)
    return Contents(path.name, cast("Mapping[str, object]", header["metadata"]), tensors)


def _add(tensors: dict[str, Tensors], kind: str, numbers: int, taken: int | None) -> None:
    held = tensors.get(kind, Tensors(bytes=None if taken is None else 0))
    tensors[kind] = replace(
        held,
        tensors=held.tensors + 1,
        numbers=held.numbers + numbers,
        bytes=None if held.bytes is None or taken is None else held.bytes + taken,
    )


def tensor_lines(tensors: Mapping[str, Tensors]) -> Iterator[str]:
    for kind, held in sorted(tensors.items()):
        stored = "" if held.bytes is None else f", {size(held.bytes)}"
        yield f"tensors of {printable(kind)}: {held.tensors}, {count(held.numbers)} numbers{stored}"


def printable(text: str) -> str:
    """`text` with control characters escaped."""
    return text if text.isprintable() else json.dumps(text)


def count(numbers: int) -> str:
    """A number as text, such as 1.50 billion."""
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if numbers >= unit:
            return f"{numbers / unit:,.2f} {name}"
    return f"{numbers:,}"


def size(taken: int) -> str:
    """Bytes as text, such as 1.50 GiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if taken >= unit:
            return f"{taken / unit:,.2f} {name}"
    return f"{taken} B"
