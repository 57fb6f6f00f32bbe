"""Index of a checkpoint's tensors: safetensors files, or a GGUF file, which may be split."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch

from penstock.backends.gpu_start import weight_files
from penstock.backends.torch.load.dequant import BLOCKS, GGML_TYPES
from penstock.core import PenstockError
from penstock.model.files import weight_map

SAMPLE = 4096
"""Bytes at the beginning and at the end of a tensor that the fingerprint covers."""
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types that are read without dequantisation, under their names in both containers."""
SAFETENSORS = {
    **FLOATS,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""Element types that are read. Tensors of others may be in a file, but not in a recipe."""
INTEGERS = ("I8", "I32", "I64")
"""Types whose elements are codes, or sizes."""
DEFAULT_ALIGNMENT = 32


class File:
    """An open file of weights, with positional reads that are safe on several threads. It is not
    memory-mapped: a page fault would block the thread, and a disk error would raise SIGBUS.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        if self.size == 0:
            raise PenstockError(f"{path}: empty")

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill `memory` from `offset` of the file. Returns the number of bytes read, which is lower
        than its length at the end of the file. Raises OSError.
        """
        done = 0
        while done < len(memory):
            count = os.preadv(self._descriptor, [memory[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def size_now(self) -> int:
        """Current size in bytes. It differs from `size` if the file has changed since it was
        opened. Raises OSError.
        """
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file. Raises PenstockError, which names the
        offset.
        """
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise PenstockError(
                f"{self.path}: cannot be read at byte {offset}: {error.strerror or error}"
            ) from error

    def mapped(self) -> mmap.mmap:
        """Map the file, for headers whose length is not known in advance."""
        return mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor's entry in the header of a file: name, type, shape, and location of its bytes."""

    name: str
    dtype: str
    """Type name in the container's notation."""
    shape: tuple[int, ...]
    """Outermost dimension first, in elements, even for quantised types."""
    file: File
    offset: int
    size: int
    """Bytes of the tensor in the file."""

    @property
    def blocks(self) -> tuple[int, int] | None:
        """Elements and bytes per block of a quantised type; None for plain numbers."""
        return BLOCKS.get(self.dtype)

    @property
    def is_plain(self) -> bool:
        """True if the elements need at most a conversion of their type, and no dequantisation."""
        return self.dtype in FLOATS

    @property
    def kind(self) -> torch.dtype:
        """torch type of the stored elements; uint8 for quantised blocks, which are read
        as bytes. Raises PenstockError, which names the tensor, for a type that is not read.
        """
        if self.blocks is not None:
            return torch.uint8
        kind = SAFETENSORS.get(self.dtype)
        if kind is None:
            raise PenstockError(f"tensor {self.name!r} has the type {self.dtype}; not read")
        return kind

    def row_bytes(self, dimensions: int = 1) -> int:
        """Bytes of a row, which spans the last `dimensions` dimensions."""
        return self.size // (math.prod(self.shape[:-dimensions]) or 1)

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Bytes `start` to `stop` of the tensor, in host memory. If the file cannot be read,
        PenstockError names the tensor and the offset.
        """
        stop = self.size if stop is None else min(stop, self.size)
        data = torch.empty(stop - start, dtype=torch.uint8)
        if stop > start:
            read_whole(self, memoryview(data.numpy()), self.offset + start)
        return data

    def rows(self, expert: int | None = None) -> torch.Tensor:
        """The tensor, or entry `expert` of its first dimension, in host memory. Plain types as
        elements; quantised types as bytes [..., rows, bytes per row].
        """
        shape, start, stop = self.shape, 0, self.size
        if expert is not None:
            part, shape = self.size // shape[0], shape[1:]
            start, stop = expert * part, (expert + 1) * part
        data = self.read(start, stop)
        if self.blocks is not None:
            numbers, size = self.blocks
            return data.view(*shape[:-1], shape[-1] // numbers * size)
        return data.view(self.kind).view(shape)


def read_whole(stored: Stored, memory: memoryview, offset: int) -> None:
    """Fill `memory` from `offset` of the tensor's file. Raises PenstockError, which names the
    tensor and the offset, if the file cannot be read or is too short.
    """
    try:
        count = stored.file.read_into(memory, offset)
    except OSError as error:
        raise PenstockError(
            f"{stored.file.path}: tensor {stored.name!r} cannot be read at byte {offset}: "
            f"{error.strerror or error}"
        ) from error
    if count < len(memory):
        raise PenstockError(
            f"{stored.file.path}: has {stored.file.size_now()} bytes and had {stored.file.size} "
            f"when it was opened; tensor {stored.name!r} cannot be read at byte {offset}"
        )


def wrong_shape(stored: Stored, expected: tuple[int, ...]) -> PenstockError:
    return PenstockError(
        f"tensor {stored.name!r} has the shape {list(stored.shape)}, not {list(expected)}"
    )


class Checkpoint:
    """The tensors of a checkpoint by name. Raises PenstockError for a damaged file or a missing
    tensor.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tensors: dict[str, Stored] = {}
        found = _safetensors(path) if path.is_dir() else _gguf(path)
        for stored in found:
            if stored.offset + stored.size > stored.file.size:
                raise PenstockError(
                    f"{stored.file.path}: tensor {stored.name!r} ends at byte "
                    f"{stored.offset + stored.size}, the file at {stored.file.size}"
                )
            self._tensors[stored.name] = stored

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Stored:
        if name not in self._tensors:
            raise PenstockError(f"{self._path}: tensor {name!r} is missing")
        return self._tensors[name]

    def fingerprint(self) -> bytes:
        """32-byte hash over all tensors: names, types, shapes, and the first and last SAMPLE bytes
        of the data of each.
        """
        digest = blake2b(b"penstock torch checkpoint", digest_size=32)
        for name, stored in sorted(self._tensors.items()):
            digest.update(json.dumps([name, stored.dtype, stored.shape]).encode())
            # Read bytes without creating torch tensors, because a checkpoint may have tens of
            # thousands of tensors.
            size = min(SAMPLE, stored.size)
            for at in (0, stored.size - size):
                digest.update(stored.file.read(stored.offset + at, size))
        return digest.digest()


def _safetensors(directory: Path) -> Iterator[Stored]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        owners = weight_map(index)
        for file in sorted(set(owners.values())):
            tensors = _safetensors_file(directory / file)
            yield from (each for each in tensors if owners.get(each.name) == file)
    else:
        yield from _safetensors_file(directory / "model.safetensors")


def _safetensors_file(path: Path) -> Iterator[Stored]:
    file = File(path)
    try:
        (size,) = struct.unpack("<Q", _read(file, 0, 8))
        header = json.loads(_read(file, 8, size))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            shape, kind = tuple(entry["shape"]), SAFETENSORS.get(entry["dtype"])
            fits = kind is None or end - start == math.prod(shape) * kind.itemsize
            if not (fits and 0 <= start <= end):
                raise ValueError(f"tensor {name!r} of {list(shape)} has {end - start} bytes")
            yield Stored(name, entry["dtype"], shape, file, 8 + size + start, end - start)
    except (KeyError, ValueError, TypeError, struct.error) as error:
        raise PenstockError(f"{path}: damaged safetensors header: {error}") from error


def _read(file: File, offset: int, size: int) -> bytes:
    if offset + size > file.size:
        raise ValueError(f"{size} bytes at {offset}, of a file of {file.size}")
    return file.read(offset, size)


def _gguf(path: Path) -> Iterator[Stored]:
    for part in weight_files(path):
        try:
            yield from _gguf_file(part)
        except (KeyError, ValueError, struct.error, OSError) as error:
            raise PenstockError(f"{part}: damaged GGUF header: {error}") from error


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9


class _Cursor:
    """Forward cursor over a GGUF header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._view = data
        self.at = 0

    def scalar(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self._view, self.at)
        self.at += struct.calcsize(form)
        return int(value) if form not in "fd" else 0

    def text(self) -> str:
        size = self.scalar("Q")
        self.at += size
        return self._view[self.at - size : self.at].decode()

    def value(self, kind: int) -> int:
        """Move past a metadata value of type `kind`. Returns the value if it is an
        integer, else 0.
        """
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
    file = File(path)
    cursor = _Cursor(file.mapped())
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
        numbers, size = BLOCKS.get(dtype) or (1, FLOATS[dtype].itemsize)
        count = math.prod(shape) // numbers * size
        yield Stored(name, dtype, shape, file, base + offset, count)
