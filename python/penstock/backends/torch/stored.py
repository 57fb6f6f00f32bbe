"""A checkpoint's tensors as mapped bytes: safetensors files, or a GGUF file and its other parts."""

from __future__ import annotations

import json
import math
import mmap
import re
import struct
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch

from penstock.backends.torch.dequant import BLOCKS, GGML_TYPES
from penstock.core import PenstockError

SAMPLE = 4096
"""Bytes at each end of a tensor that its fingerprint reads."""
SAFETENSORS = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
GGUF_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
DEFAULT_ALIGNMENT = 32
NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which the module `mmap` does not name before Python 3.13."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file."""

    name: str
    dtype: str
    """As the container spells it."""
    shape: tuple[int, ...]
    """Outermost dimension first; it counts numbers, also of quantised types."""
    data: torch.Tensor
    """Bytes of the mapped file."""

    @property
    def blocks(self) -> tuple[int, int] | None:
        """Numbers and bytes of a block of a quantised type; None for plain numbers."""
        return BLOCKS.get(self.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether the numbers need nothing but a conversion of their type."""
        return self.blocks is None and self.dtype not in ("U8", "F8_E4M3")

    def rows(self) -> torch.Tensor:
        """The numbers, or the bytes of quantised rows: [..., rows, bytes of a row]."""
        if self.blocks is None:
            kind = SAFETENSORS.get(self.dtype) or GGUF_FLOATS[self.dtype]
            # Some writers do not align tensors.
            data = self.data.clone() if self.data.storage_offset() % kind.itemsize else self.data
            return data.view(kind).view(self.shape)
        numbers, size = self.blocks
        return self.data.view(*self.shape[:-1], self.shape[-1] // numbers * size)


class Checkpoint:
    """Tensors by name. PenstockError names a damaged file, or a tensor that is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.metadata = b""
        self._tensors: dict[str, Stored] = {}
        found = _safetensors(path) if path.is_dir() else _gguf(path)
        for stored in found:
            self._tensors[stored.name] = stored

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> Stored:
        if name not in self._tensors:
            raise PenstockError(f"{self._path}: tensor {name!r} is missing")
        return self._tensors[name]

    def shapes(self) -> Checkpoint:
        """The same tensors without their numbers, on the meta device."""
        made = copy(self)
        made._tensors = {
            name: replace(stored, data=stored.data.to("meta"))
            for name, stored in self._tensors.items()
        }
        return made

    def fingerprint(self) -> bytes:
        """32 bytes of the names, types, shapes, and both ends of the data of all tensors."""
        digest = blake2b(b"penstock torch checkpoint", digest_size=32)
        for name, stored in sorted(self._tensors.items()):
            digest.update(json.dumps([name, stored.dtype, stored.shape]).encode())
            digest.update(stored.data[:SAMPLE].numpy(force=True).tobytes())
            digest.update(stored.data[-SAMPLE:].numpy(force=True).tobytes())
        return digest.digest()


def _mapped(path: Path) -> torch.Tensor:
    """All bytes of a file. Private pages: torch wants memory that it could write. None are reserved
    for that, or Linux would refuse a file larger than the host's memory.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise PenstockError(f"{path}: empty")
        flags, access = mmap.MAP_PRIVATE | NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        return torch.frombuffer(
            mmap.mmap(file.fileno(), 0, flags=flags, prot=access), dtype=torch.uint8
        )


def _safetensors(directory: Path) -> Iterator[Stored]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        owners: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        for file in sorted(set(owners.values())):
            tensors = _safetensors_file(directory / file)
            yield from (each for each in tensors if owners.get(each.name) == file)
    else:
        yield from _safetensors_file(directory / "model.safetensors")


def _safetensors_file(path: Path) -> Iterator[Stored]:
    data = _mapped(path)
    try:
        (size,) = struct.unpack("<Q", bytes(data[:8].tolist()))
        header = json.loads(data[8 : 8 + size].numpy(force=True).tobytes())
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in SAFETENSORS:
                continue
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            yield Stored(name, entry["dtype"], tuple(entry["shape"]), data[start:end])
    except (KeyError, ValueError, TypeError, struct.error) as error:
        raise PenstockError(f"{path}: damaged safetensors header: {error}") from error


def _gguf(path: Path) -> Iterator[Stored]:
    split = SPLIT.search(path.name)
    parts = [path]
    if split is not None:
        count = int(split[2])
        names = (f"-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1))
        parts = [path.with_name(path.name[: split.start()] + name) for name in names]
    for part in parts:
        try:
            yield from _gguf_file(part)
        except (KeyError, ValueError, struct.error, OSError) as error:
            raise PenstockError(f"{part}: damaged GGUF header: {error}") from error


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9


class _Cursor:
    """A GGUF header, read forward."""

    def __init__(self, data: torch.Tensor) -> None:
        self._view = memoryview(data.numpy(force=True))
        self.at = 0

    def scalar(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self._view, self.at)
        self.at += struct.calcsize(form)
        return int(value) if form not in "fd" else 0

    def text(self) -> str:
        size = self.scalar("Q")
        self.at += size
        return bytes(self._view[self.at - size : self.at]).decode()

    def value(self, kind: int) -> int:
        """Skips a value of metadata; the number of one."""
        if kind == _STRING:
            self.text()
            return 0
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner in _SCALARS:
                self.at += count * struct.calcsize(_SCALARS[inner])
            else:
                for _ in range(count):
                    self.value(inner)
            return 0
        return self.scalar(_SCALARS[kind])


def _gguf_file(path: Path) -> Iterator[Stored]:
    data = _mapped(path)
    cursor = _Cursor(data)
    magic, version = cursor.scalar("I"), cursor.scalar("I")
    if magic != 0x46554747 or version not in (2, 3):
        raise ValueError(f"magic {magic:#x}, version {version}")
    tensors, pairs = cursor.scalar("Q"), cursor.scalar("Q")
    alignment = DEFAULT_ALIGNMENT
    for _ in range(pairs):
        key = cursor.text()
        value = cursor.value(cursor.scalar("I"))
        alignment = value if key == "general.alignment" else alignment
    entries = []
    for _ in range(tensors):
        name = cursor.text()
        sizes = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
        entries.append((name, tuple(reversed(sizes)), cursor.scalar("I"), cursor.scalar("Q")))
    base = -(-cursor.at // alignment) * alignment
    for name, shape, kind, offset in entries:
        dtype = GGML_TYPES.get(kind)
        if dtype is None:
            raise PenstockError(f"{path}: tensor {name!r} has the type {kind} of ggml; not read")
        numbers, size = BLOCKS.get(dtype) or (1, GGUF_FLOATS[dtype].itemsize)
        count = math.prod(shape) // numbers * size
        yield Stored(name, dtype, shape, data[base + offset : base + offset + count])
