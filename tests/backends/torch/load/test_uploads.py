"""Uploads of weights: what arrives is what a plain read of the files gives, however it is cut; no
buffer is written too early; what cannot be read is named, and leaves no thread behind.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.load import uploads as uploads_module
from penstock.backends.torch.load.checkpoint import Checkpoint, File, Stored
from penstock.backends.torch.load.load import load_weights
from penstock.backends.torch.load.readers import Readers
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.load.uploads import InPlace, PlainReads, Ring, Uploads, Way
from penstock.backends.torch.shard import whole
from penstock.backends.torch.step.device import Cpu
from penstock.core import PenstockError
from penstock.engine.startup import read_model
from tests.backends.torch.driving import config_of
from tests.backends.torch.quantised import with_fp8, with_mxfp4
from tests.backends.torch.test_start import broken
from tests.families import FAMILIES, GGUF_FAMILIES

CPU = torch.device("cpu")


class Late:
    """A stream whose copies happen when they are waited for, in their order, or by chance."""

    def __init__(self, seed: int | None = None) -> None:
        self.buffers = 0
        self.log: list[str] = []
        self._chance = None if seed is None else random.Random(seed)
        self._queue: list[tuple[int, Tensor, Tensor]] = []
        self._count = 0

    def buffer(self, size: int) -> Tensor:
        self.buffers += 1
        return torch.full((size,), 255, dtype=torch.uint8)

    def copy(self, target: Tensor, source: Tensor) -> None:
        self._queue.append((self._count, target, source))
        self._count += 1

    def mark(self) -> LateMark:
        return LateMark(self, self._count)

    def may_end(self, count: int) -> bool:
        if self._chance is not None and self._chance.random() < 0.5:
            self.until(count)
        return not self._queue or self._queue[0][0] >= count

    def until(self, count: int) -> None:
        while self._queue and self._queue[0][0] < count:
            _, target, source = self._queue.pop(0)
            target.copy_(source)


class LateMark:
    def __init__(self, stream: Late, count: int) -> None:
        self._stream, self._count = stream, count

    def query(self) -> bool:
        return self._stream.may_end(self._count)

    def synchronize(self) -> None:
        self._stream.log.append(f"wait {self._count}")
        self._stream.until(self._count)


def files(directory: Path, chance: random.Random) -> list[Stored]:
    """Tensors of random bytes in a few files, some with gaps between them, some of no bytes."""
    made: list[Stored] = []
    for number in range(chance.randint(1, 3)):
        path, at, places = directory / str(number), chance.randint(0, 9), []
        for index in range(chance.randint(1, 30)):
            size = chance.choice([0, 1, chance.randint(1, 40), chance.randint(1, 700)])
            places.append((f"{number}.{index}", at, size))
            at += size + chance.choice([0, 0, 0, chance.randint(1, 90)])
        path.write_bytes(chance.randbytes(at + 1))
        file = File(path)
        made += [Stored(name, "U8", (size,), file, at, size) for name, at, size in places]
    return made


def read_all(way: Way, tensors: Sequence[Stored], chance: random.Random, **sizes: int) -> None:
    """Whole tensors and parts of them, filled, staged, or both at once; in any order."""
    wanted = [(each, 0, each.size) for each in tensors]
    for each in chance.sample(tensors, len(tensors) // 2):
        start = chance.randint(0, each.size)
        wanted.append((each, start, chance.randint(0, each.size - start)))
    chance.shuffle(wanted)
    found: list[tuple[Stored, int, Tensor]] = []
    with Uploads(way, **sizes) as uploads:
        for stored, start, size in wanted:
            if chance.random() < 0.5:
                target = torch.zeros(size, dtype=torch.uint8)
                uploads.fill(target, stored, start)
                found.append((stored, start, target))
            else:

                def then(data: Tensor, stored: Stored = stored, start: int = start) -> None:
                    # As later work of the device sees it.
                    if isinstance(way, Ring):
                        way._stream.mark().synchronize()
                    found.append((stored, start, data.clone()))

                uploads.stage(stored, start, size, then)
            if chance.random() < 0.1:
                uploads.settle()
            small = torch.arange(chance.randint(0, 9), dtype=torch.float32)
            found.append((tensors[0], -1, uploads.send(small)))
        uploads.settle()
        if isinstance(way, Ring):
            way._stream.mark().synchronize()
    assert len(found) == 2 * len(wanted)
    for stored, start, data in found:
        if start < 0:
            assert data.tolist() == list(range(len(data)))
        else:
            expected = stored.file.path.read_bytes()[stored.offset + start :][: len(data)]
            assert bytes(data.tolist()) == expected
    assert sum(len(data) for _, start, data in found if start >= 0) == sum(
        size for _, _, size in wanted
    )


@pytest.mark.parametrize("seed", range(40))
def test_any_cut_gives_the_bytes_of_a_plain_read(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    piece = chance.choice([1, 7, 64, 300, 5000])
    monkeypatch.setattr(uploads_module, "SMALL_BYTES", 64)
    stream = Late(seed) if seed % 4 else Late()
    buffers = chance.randint(1, 6)
    way: Way = Ring(stream, CPU, buffers, piece) if seed % 5 else InPlace(piece)
    tensors = files(tmp_path, chance)
    before = threading.active_count()
    sizes = {"readers": chance.randint(1, 5), "window_bytes": chance.choice([1, 500, 1 << 20])}
    read_all(way, tensors, chance, **sizes)
    assert threading.active_count() == before


def test_a_buffer_is_written_again_when_its_copies_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    stored = Stored("w", "U8", (200,), File(path), 0, 200)
    stream, target = Late(), torch.zeros(200, dtype=torch.uint8)
    with Uploads(Ring(stream, CPU, 2, 50), readers=1) as uploads:
        uploads.fill(target, stored)
        uploads.settle()
    # The third of four pieces waits for the first, the fourth for the second.
    assert stream.log == ["wait 1", "wait 2"]
    assert stream.buffers == 2
    assert not target[100:].any()
    stream.until(4)
    assert target.tolist() == list(range(200))


def test_neighbours_in_a_file_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of small tensors, as experts have, in the order of the file."""
    path = tmp_path / "file"
    path.write_bytes(random.Random(3).randbytes(3000))
    file = File(path)
    tensors = [Stored(str(at), "U8", (3,), file, 3 * at, 3) for at in range(1000)]
    reads: list[tuple[int, int]] = []
    read_into = File.read_into

    def noted(self: File, memory: memoryview, offset: int) -> int:
        reads.append((offset, len(memory)))
        return read_into(self, memory, offset)

    monkeypatch.setattr(File, "read_into", noted)
    targets = torch.zeros(1000, 3, dtype=torch.uint8)
    stream, heard = Late(), []
    ring = Ring(stream, CPU, 2, 1024)
    with Uploads(ring, readers=1, on_bytes=heard.append) as uploads:
        for at in random.Random(4).sample(range(1000), 1000):
            uploads.fill(targets[at], tensors[at])
        uploads.settle()
        stream.mark().synchronize()
    assert reads == [(0, 1024), (1024, 1024), (2048, 952)]
    assert sum(heard) == 3000
    assert targets.flatten().tolist() == list(path.read_bytes())


@contextmanager
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def load_two(path: Path, way: Way) -> None:
    """Two tensors of 1000 bytes of a file, in pieces of 64."""
    file = File(path)
    with Uploads(way, readers=3) as uploads:
        path.write_bytes(path.read_bytes()[:1500])
        for number in range(2):
            stored = Stored(f"layers.{number}", "U8", (1000,), file, 1000 * number, 1000)
            uploads.fill(torch.zeros(1000, dtype=torch.uint8), stored)
        uploads.settle()


@pytest.mark.parametrize("ring", [False, True])
def test_a_file_that_is_cut_meanwhile_is_named(ring: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(2000))
    way: Way = Ring(Late(), CPU, 2, 64) if ring else InPlace(64)
    # Readers are not in order: the piece whose failure comes first may lie behind the cut.
    message = (
        r"model\.safetensors: has 1500 bytes and had 2000 when it was opened; "
        r"tensor 'layers\.1' cannot be read at byte 1[4-9]\d\d$"
    )
    with no_thread_left(), pytest.raises(PenstockError, match=message):
        load_two(path, way)


@pytest.mark.parametrize("ring", [False, True])
def test_a_read_that_fails_names_file_tensor_and_place(
    ring: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(2000))
    way: Way = Ring(Late(), CPU, 2, 64) if ring else InPlace()

    def fails(_self: File, memory: memoryview, offset: int) -> int:
        if offset + len(memory) > 1200:
            raise OSError(errno.EIO, "Input/output error")
        return len(memory)

    monkeypatch.setattr(File, "read_into", fails)
    with (
        no_thread_left(),
        pytest.raises(
            PenstockError,
            match=r"model\.safetensors: tensor 'layers\.1' cannot be read at byte 1\d+: Input/out",
        ),
    ):
        load_two(path, way)


def test_a_reader_that_dies_ends_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(2000))

    def dies(*_: object) -> int:
        raise MemoryError("no room")

    monkeypatch.setattr(File, "read_into", dies)
    with no_thread_left(), pytest.raises(MemoryError, match="no room"):
        load_two(path, InPlace(64))


def test_a_device_without_room_ends_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2000))
    stored = Stored("w", "U8", (2000,), File(path), 0, 2000)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def staged() -> None:
        with Uploads(Ring(Late(), CPU, 2, 64), readers=3) as uploads:
            uploads.stage(stored, 0, 2000, lambda _: None)
            monkeypatch.setattr(torch, "empty", full)
            uploads.settle()

    with no_thread_left(), pytest.raises(torch.OutOfMemoryError):
        staged()


def test_threads_that_cannot_start_end_those_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def starts(self: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", starts)
    with no_thread_left(), pytest.raises(PenstockError, match="no thread to read weights with"):
        Readers(4)


def tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from tensors(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from tensors(getattr(value, each.name))


class Cut(Cpu):
    """torch's CPU device, with weights read in small pieces."""

    def __init__(self) -> None:
        super().__init__(1)

    def way(self) -> Way:
        return InPlace(1000)


class Uploading(Cpu):
    """torch's CPU device, with weights that go through a small ring."""

    def __init__(self) -> None:
        super().__init__(1)
        self.stream = Chained()

    def way(self) -> Way:
        return Ring(self.stream, CPU, 3, 1000)


class Chained(Late):
    """Copies whose end is seen at once: work of the device comes behind them."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)
        self._count += 1


def load(model: str, device: Cpu, **settings: object) -> list[Tensor]:
    config = config_of(model, **settings)
    loaded = TorchBackend(config, read_model(config), None, device)
    loaded.close()
    return list(tensors(loaded._weights))


def compare(model: str, **settings: object) -> None:
    """Weights through a ring of small buffers, in place, and by plain reads."""
    config = config_of(model, **settings)
    info = read_model(config)
    exact = config.model.dtype == "float32"
    dtype = torch.float32 if exact else torch.bfloat16
    source = Source(Checkpoint(Path(info.paths[0])), dtype, PlainReads())
    shard, longest = whole(info.spec), info.spec.max_position
    expected = list(tensors(load_weights(source, info.spec, info.weights, shard, longest)))
    for device in (Uploading(), Cut()):
        found = load(model, device, **settings)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            same(ours, theirs)


def same(ours: Tensor, theirs: Tensor) -> None:
    assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("family", [*FAMILIES, *GGUF_FAMILIES])
def test_weights_are_those_of_plain_reads_bit_for_bit(family: str, dtype: str) -> None:
    compare(family, dtype=dtype)


@pytest.mark.parametrize("form", ["fp8", "mxfp4"])
def test_codes_are_uploaded_too(form: str, tmp_path: Path) -> None:
    compare(with_fp8("deepseek3", tmp_path) if form == "fp8" else with_mxfp4(tmp_path))


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.v_proj.weight"

    def spoil(header: dict[str, dict[str, list[int]]], data: bytearray, base: int) -> None:
        at = base + header[name]["data_offsets"][0]
        data[at : at + 4] = b"\xff\xff\xff\x7f"

    with pytest.raises(PenstockError, match=f"tensor '{name}' has values that are not finite"):
        load(broken(tmp_path, spoil), Uploading())


def test_a_file_that_ends_within_a_tensor_is_refused(tmp_path: Path) -> None:
    def cut(header: dict[str, dict[str, list[int]]], data: bytearray, base: int) -> None:
        del data[-8:]

    with pytest.raises(PenstockError, match=r"model\.safetensors: tensor '.*' ends at byte \d+, "):
        load(broken(tmp_path, cut), Cpu(1))


@pytest.mark.parametrize("family", [*FAMILIES, *GGUF_FAMILIES])
def test_progress_ends_with_the_load(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is about what was expected."""
    counts: list[int] = []

    class Noted:
        def __init__(self, total: int, *_: object) -> None:
            counts.append(-total)

        def add(self, count: int) -> None:
            counts.append(count)

    module = import_module("penstock.backends.torch.load.load")
    monkeypatch.setattr(module, "LoadProgress", Noted)
    load(family, Uploading())
    assert sum(counts) == 0
    assert counts[-1] < 0.3 * -counts[0]
