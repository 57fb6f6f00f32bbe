"""Parts that kvikio reads, from the files of a disk tier."""

from __future__ import annotations

import ctypes
import json
import sys
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock._native import KvMover
from penstock.core.transfer import Transfer, TransferKind
from penstock.kv.gds import (
    KvikioParts,
    Memory,
    Part,
    PartDamagedError,
    PartMissingError,
    PartsError,
    kvikio,
)
from tests.executor.worker.test_kv_mover import disk, move
from tests.limits import HANG

HEADER = 4096
BLOCKS = 3
TILE = 3000
EXTENT = 2 * TILE
IDENTITY = {
    "cache": "ab" * 32,
    "layers": 2,
    "kv_heads": 2,
    "block_tokens": 16,
    "tile_bytes": TILE,
    "dtype": "bf16",
}
PART = Part(bytes([7]) * 32, BLOCKS, head=1, layers=(0, 2))
POOL = bytes((i * 31 + i * i // 251) % 253 for i in range(BLOCKS * 2 * EXTENT))
"""Blocks of two heads."""

ONES = (1 << 64) - 1


def crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x9A6C9329AC4BC9B5 if byte & 1 else 0)
    return byte


CRC_TABLE = list(map(crc_of, range(256)))

Open = Callable[[Path], tuple[KvMover, KvikioParts]]


@pytest.fixture
def opened(kvikio_works: None) -> Iterator[Open]:
    made: list[KvMover] = []

    def make(path: Path) -> tuple[KvMover, KvikioParts]:
        settings = {
            "ram_slots": 0,
            "tiers": [disk(path)],
            "chunk_tokens": BLOCKS * 16,
            "identity": IDENTITY,
            "heads": [0, 1],
            "layers": [[0, 2]],
        }
        made.append(KvMover.over([(bytearray(POOL), BLOCKS)], json.dumps(settings)))
        return made[-1], KvikioParts(made[-1], 1)

    yield make
    for mover in made:
        mover.close(HANG)


class Device:
    """Memory that says it is a device's. The driver says it is not, so kvikio moves it as the
    host's.
    """

    def __init__(self, size: int) -> None:
        self._memory = ctypes.create_string_buffer(size)
        self.__cuda_array_interface__ = {
            "data": (ctypes.addressof(self._memory), False),
            "shape": (2, size // 4),
            "typestr": "<i2",
            "version": 3,
        }

    def content(self) -> bytes:
        return self._memory.raw


def content(part: Part, block: int) -> bytes:
    at = (2 * block + part.head) * EXTENT
    return POOL[at : at + EXTENT]


def store(mover: KvMover, part: Part = PART) -> None:
    blocks = array("i", range(BLOCKS))
    assert move(mover, Transfer(1, TransferKind.STORE, 1, blocks, keys=part.digest)).done


def crc64(*memories: bytes | bytearray) -> int:
    """The CRC-64/NVME of docs/kv-format.md."""
    crc = ONES
    for memory in memories:
        for byte in memory:
            crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ ONES


def fetch(parts: KvikioParts, part: Part = PART) -> list[bytes]:
    into = [bytearray(EXTENT) for _ in range(BLOCKS)]
    parts.load(part, list(map(memoryview, into)), lambda: crc64(*into))
    return list(map(bytes, into))


def files(path: Path) -> list[Path]:
    """The files of the part."""
    return sorted((path / "penstock-kv-1").glob("*/??/*.h1.l0-2"))


def test_the_checksum_is_that_of_the_format() -> None:
    assert crc64(b"123456789") == 0xAE8B14860A799888


def test_what_the_disk_tier_wrote_is_read(tmp_path: Path, opened: Open) -> None:
    mover, parts = opened(tmp_path)
    store(mover)
    for head in range(2):
        part = Part(PART.digest, BLOCKS, head, PART.layers)
        assert fetch(parts, part) == [content(part, block) for block in range(BLOCKS)]


def test_memory_of_a_device_is_filled(tmp_path: Path, opened: Open) -> None:
    mover, parts = opened(tmp_path)
    store(mover)
    into = [Device(EXTENT) for _ in range(BLOCKS)]
    parts.load(PART, into, lambda: crc64(*(memory.content() for memory in into)))
    assert [memory.content() for memory in into] == [content(PART, block) for block in range(3)]


def test_many_parts_are_read_at_once(tmp_path: Path, opened: Open) -> None:
    mover, parts = opened(tmp_path)
    many = [Part(bytes([digest]) * 32, BLOCKS, 1, (0, 2)) for digest in range(1, 21)]
    for part in many:
        store(mover, part)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda part: fetch(parts, part), many))
    assert found == [[content(PART, block) for block in range(BLOCKS)]] * len(many)


def flip(at: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        bytes_ = bytearray(file.read_bytes())
        bytes_[at] ^= 4
        file.write_bytes(bytes_)

    return damage


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (flip(60), "header's checksum is wrong"),
        (flip(0), "no magic"),
        (flip(HEADER), "payload's checksum is wrong"),
        (flip(HEADER + BLOCKS * EXTENT - 1), "payload's checksum is wrong"),
        (lambda file: file.write_bytes(file.read_bytes()[:-4096]), "bytes instead of"),
        (lambda file: file.write_bytes(b""), "0 bytes instead of"),
    ],
)
def test_damage_is_noticed_and_put_aside(
    tmp_path: Path, opened: Open, damage: Callable[[Path], None], what: str
) -> None:
    mover, parts = opened(tmp_path)
    store(mover)
    (file,) = files(tmp_path)
    damage(file)
    with pytest.raises(PartDamagedError, match=what):
        fetch(parts)
    assert len(list(tmp_path.glob("penstock-kv-1/quarantine/*"))) == 1
    (tier,) = json.loads(mover.report())["tiers"]
    assert tier["damaged"] == 1
    with pytest.raises(PartMissingError):
        fetch(parts)
    store(mover)
    assert fetch(parts) == [content(PART, block) for block in range(BLOCKS)]


def test_an_error_of_the_device_is_the_cause(tmp_path: Path, opened: Open) -> None:
    def lost() -> int:
        raise RuntimeError("the device is lost")

    mover, parts = opened(tmp_path)
    store(mover)
    into: list[Memory] = [memoryview(bytearray(EXTENT)) for _ in range(BLOCKS)]
    with pytest.raises(PartsError, match="the device is lost") as raised:
        parts.load(PART, into, lost)
    assert isinstance(raised.value.__cause__, RuntimeError)
    with pytest.raises(PartsError, match="12000 bytes are not the 18000"):
        parts.load(PART, into[:2], lost)
    assert fetch(parts) == [content(PART, block) for block in range(BLOCKS)]


def test_another_tier_has_no_files(tmp_path: Path, opened: Open) -> None:
    mover, _ = opened(tmp_path)
    with pytest.raises(PartsError, match=r"tier 2 is no chunk tier"):
        fetch(KvikioParts(mover, 2))


def test_what_is_missing_is_named(
    kvikio_works: None, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    mover, _ = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(kvikio, "DRIVER", "libcuda.so.none")
        with pytest.raises(PartsError, match=r"kvikio cannot be used: libcuda\.so\.none"):
            KvikioParts(mover, 1)


def test_without_kvikio_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    unused: Any = None
    with pytest.raises(PartsError, match=r"needs kvikio .*pip install 'penstock\[gds\]'"):
        KvikioParts(unused, 1)
