"""Parts that kvikio moves, and the disk tier beside it: one directory, the same files."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock.core import InvalidValueError
from penstock.core.transfer import Transfer, TransferKind
from penstock.gds import (
    DirectParts,
    KvikioParts,
    Part,
    PartDamagedError,
    PartMissingError,
    PartsError,
    PartsFullError,
    kvikio,
)

from tests.worker.test_kv_mover import PROMPT, chunk, compute, disk, load, move, moving

HANG = 60.0
HEADER = 4096
IDENTITY = {
    "cache": "ab" * 32,
    "layers": 2,
    "kv_heads": 2,
    "block_tokens": 16,
    "tile_bytes": 3000,
    "dtype": "bf16",
}
EXTENT = 2 * 3000
PART = Part(bytes([7]) * 32, blocks=3, head=1, layers=(0, 2))
NAME = re.compile(r"([0-9a-f]{64})-(\d+)\.h(\d+)\.l(\d+)-(\d+)")

Open = Callable[..., KvikioParts]


@pytest.fixture
def opened(kvikio_works: None) -> Iterator[Open]:
    made: list[KvikioParts] = []

    def make(
        path: Path, limit: int = 1 << 30, identity: dict[str, Any] = IDENTITY, **more: Any
    ) -> KvikioParts:
        options = {"path": str(path), "limit_bytes": limit, "chunk_blocks": 3, "identity": identity}
        made.append(KvikioParts(options, posix=True, **more))
        return made[-1]

    yield make
    for parts in made:
        parts.close()


class Device:
    """Memory that says it is a device's. The driver says it is not, so kvikio moves it as the
    host's.
    """

    def __init__(self, content: bytes, readonly: bool = False) -> None:
        self._memory = ctypes.create_string_buffer(content, len(content))
        self.__cuda_array_interface__ = {
            "data": (ctypes.addressof(self._memory), readonly),
            "shape": (2, len(content) // 4),
            "typestr": "<i2",
            "version": 3,
        }

    def content(self) -> bytes:
        return self._memory.raw


def copy(memory: Any, offset: int, into: memoryview) -> None:
    into[:] = memory.content()[offset : offset + len(into)]


def content(part: Part, block: int) -> bytes:
    return bytes((block * 31 + part.head * 7 + i * i) % 251 for i in range(EXTENT))


def store(parts: DirectParts, part: Part = PART) -> None:
    parts.store(part, [bytearray(content(part, block)) for block in range(part.blocks)]).result(
        HANG
    )


def fetch(parts: DirectParts, part: Part = PART, extent: int = EXTENT) -> list[bytes]:
    into = [bytearray(extent) for _ in range(part.blocks)]
    parts.load(part, into).result(HANG)
    return [bytes(memory) for memory in into]


def files(path: Path) -> dict[Part, Path]:
    """What lies below a tier's path under the names of parts."""
    found = {}
    for file in (path / "penstock-kv-1").glob("*/??/*"):
        match = NAME.fullmatch(file.name)
        assert match, file
        digest, blocks, head, first, end = match.groups()
        found[Part(bytes.fromhex(digest), int(blocks), int(head), (int(first), int(end)))] = file
    return found


def test_what_the_disk_tier_wrote_goes_through_kvikio_to_another_engine(
    repository: Path, tmp_path: Path, opened: Open
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    first = load(repository)
    with moving(first, disk(ours), slots=0) as mover:
        compute(first, PROMPT, 0, [3, 1, 6])
        assert move(mover, chunk(TransferKind.STORE, 1, [3, 1])).done
        assert move(mover, chunk(TransferKind.STORE, 2, [6])).done
        expected = compute(first, [5], 40, [3, 1, 6])
    (about,) = ours.glob("penstock-kv-1/*/identity.json")
    identity = json.loads(about.read_text())["identity"]
    source, target = opened(ours, identity=identity), opened(theirs, identity=identity)
    written = files(ours)
    assert {part.blocks for part in written} == {1, 2}
    for part, file in written.items():
        extent = (part.layers[1] - part.layers[0]) * identity["tile_bytes"]
        extents = fetch(source, part, extent)
        assert b"".join(extents) == file.read_bytes()[HEADER : HEADER + part.blocks * extent]
        target.store(part, [memoryview(content) for content in extents]).result(HANG)
    copied = files(theirs)
    assert {part: file.read_bytes() for part, file in copied.items()} == {
        part: file.read_bytes() for part, file in written.items()
    }
    second = load(repository)
    with moving(second, disk(theirs), slots=0) as mover:
        names = bytes([1]) * 32 + bytes([2]) * 32
        probe = Transfer(3, TransferKind.PROBE, 1, keys=names, counts=array("i", [2, 1]))
        assert move(mover, probe).found == b"\1\1"
        assert move(mover, chunk(TransferKind.LOAD, 1, [8, 2])).done
        assert move(mover, chunk(TransferKind.LOAD, 2, [5])).done
        assert compute(second, [5], 40, [8, 2, 5]) == expected


def test_another_identity_shares_nothing(tmp_path: Path, opened: Open) -> None:
    store(opened(tmp_path))
    with pytest.raises(PartMissingError):
        fetch(opened(tmp_path, identity=IDENTITY | {"cache": "cd" * 32}))


def test_memory_of_a_device_is_summed_in_pieces(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvikio, "PIECE", 4000)
    parts = opened(tmp_path, copy=copy)
    wanted = [content(PART, block) for block in range(PART.blocks)]
    parts.store(PART, [Device(bytes_) for bytes_ in wanted]).result(HANG)
    assert fetch(parts) == wanted
    into = [Device(bytes(EXTENT)) for _ in wanted]
    parts.load(PART, into).result(HANG)
    assert [memory.content() for memory in into] == wanted


def test_many_parts_move_at_once(tmp_path: Path, opened: Open) -> None:
    parts = opened(tmp_path)
    many = [
        Part(bytes([digest]) * 32, 3, head, (0, 2)) for digest in range(20) for head in range(2)
    ]
    stores = [parts.store(part, [bytearray(content(part, b)) for b in range(3)]) for part in many]
    for stored in stores:
        stored.result(HANG)
    into = [[bytearray(EXTENT) for _ in range(3)] for _ in many]
    for loaded in [parts.load(part, extents) for part, extents in zip(many, into, strict=True)]:
        loaded.result(HANG)
    assert into == [[bytearray(content(part, b)) for b in range(3)] for part in many]


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
        (flip(HEADER + 3 * EXTENT - 1), "payload's checksum is wrong"),
        (lambda file: file.write_bytes(file.read_bytes()[:-4096]), "bytes instead of"),
        (lambda file: file.write_bytes(b""), "0 bytes instead of"),
    ],
)
@pytest.mark.parametrize("device", [False, True])
def test_damage_is_noticed_and_put_aside(
    tmp_path: Path, opened: Open, damage: Callable[[Path], None], what: str, device: bool
) -> None:
    parts = opened(tmp_path, copy=copy)
    store(parts)
    damage(files(tmp_path)[PART])
    into = [Device(bytes(EXTENT)) if device else bytearray(EXTENT) for _ in range(PART.blocks)]
    with pytest.raises(PartDamagedError, match=what):
        parts.load(PART, into).result(HANG)
    assert len(list(tmp_path.glob("penstock-kv-1/quarantine/*"))) == 1
    with pytest.raises(PartMissingError):
        fetch(parts)
    store(parts)
    assert fetch(parts) == [content(PART, block) for block in range(PART.blocks)]


def test_a_store_that_fails_leaves_no_file(tmp_path: Path, opened: Open) -> None:
    def fails(memory: Any, offset: int, into: memoryview) -> None:
        raise RuntimeError("the device is lost")

    parts = opened(tmp_path, copy=fails)
    future = parts.store(PART, [Device(content(PART, block)) for block in range(PART.blocks)])
    with pytest.raises(PartsError, match="the device is lost") as raised:
        future.result(HANG)
    assert isinstance(raised.value.__cause__, RuntimeError)
    with pytest.raises(PartsError, match="12000 bytes are not the 18000"):
        parts.store(PART, [bytearray(EXTENT), bytearray(EXTENT)]).result(HANG)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["identity.json"]


def test_a_full_disk_is_known_as_one(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(moving: list[Any]) -> int:
        for future in moving:
            future.get()
        raise OSError(28, "No space left on device")

    parts = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(kvikio, "_join", full)
        with pytest.raises(PartsFullError, match="No space left"):
            store(parts)
    assert not files(tmp_path)
    store(parts)


def test_the_limit_holds(tmp_path: Path, opened: Open) -> None:
    # Two heads of a full chunk have room, and half as much.
    parts = opened(tmp_path, limit=5 * 24576 // 2 + 4096)
    many = [Part(bytes([digest]) * 32, 3, 0, (0, 2)) for digest in range(6)]
    for part in many:
        store(parts, part)
    left = files(tmp_path)
    assert 0 < len(left) < 4
    assert many[-1] in left


def test_memory_that_cannot_be_used_is_refused(tmp_path: Path, opened: Open) -> None:
    parts = opened(tmp_path)
    with pytest.raises(InvalidValueError, match="may be written"):
        parts.load(PART, [memoryview(bytes(EXTENT))] * 3)
    with pytest.raises(InvalidValueError, match="copies device memory"):
        parts.store(PART, [Device(bytes(EXTENT))] * 3)
    with pytest.raises(InvalidValueError, match="may be written"):
        opened(tmp_path, copy=copy).load(PART, [Device(bytes(EXTENT), readonly=True)] * 3)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PartsError, match=str(tmp_path / "file")):
        opened(tmp_path / "file")
    with pytest.raises(PartsError, match="unknown field"):
        KvikioParts({"colour": 1})


def test_what_is_missing_is_named(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(kvikio, "DRIVER", "libcuda.so.none")
        with pytest.raises(PartsError, match=r"kvikio cannot be used: libcuda\.so\.none"):
            KvikioParts({})


def test_without_kvikio_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(PartsError, match=r"needs kvikio .*pip install 'penstock\[gpu\]'"):
        KvikioParts({})
