"""What a rank begins before torch is imported."""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.backends import gpu_start
from penstock.backends.gpu_start import open_context, reading_ahead, weight_files
from tests.limits import HANG
from tests.real_ranks import TINY, exact_config


def ended() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith(("read-ahead", "context")):
            thread.join(HANG)


def sharded(directory: Path, sizes: list[int]) -> list[Path]:
    names = [f"model-{at}.safetensors" for at in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        (directory / name).write_bytes(bytes(size))
    owners = {f"tensor{at}": name for at, name in enumerate(reversed(names))}
    text = json.dumps({"weight_map": owners})
    (directory / "model.safetensors.index.json").write_text(text)
    return [directory / name for name in names]


def test_files_of_a_checkpoint_come_in_their_order(tmp_path: Path) -> None:
    assert weight_files(TINY / "llama") == [TINY / "llama" / "model.safetensors"]
    files = sharded(tmp_path, [1, 1, 1])
    assert weight_files(tmp_path) == files
    first = tmp_path / "big-00001-of-00002.gguf"
    assert weight_files(first) == [first, tmp_path / "big-00002-of-00002.gguf"]
    assert weight_files(tmp_path / "one.gguf") == [tmp_path / "one.gguf"]


Read = tuple[int, int]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Offsets and sizes of chunks, in the order of their begin, of files not in memory."""
    found: list[Read] = []
    preadv = gpu_start.os.preadv

    def noted(descriptor: int, memories: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError(11, "not in memory")
        count = preadv(descriptor, memories, offset)
        found.append((offset, count))
        return count

    monkeypatch.setattr(gpu_start.os, "preadv", noted)
    monkeypatch.setattr(gpu_start, "CHUNK", 4096)
    monkeypatch.setattr(gpu_start, "SCRATCH", 1024)
    return found


def test_all_of_the_files_is_read(tmp_path: Path, reads: list[Read]) -> None:
    sharded(tmp_path, [10_000, 100, 4096])
    with reading_ahead(tmp_path, exact_config(str(TINY / "llama"), {"device": "torch"}), None):
        ended()
    assert sorted(reads) == [(0, 100), (0, 4096), (0, 4096), (4096, 4096), (8192, 1808)]


def test_a_stage_reads_its_part(tmp_path: Path, reads: list[Read]) -> None:
    sharded(tmp_path, [10, 20, 30, 40])
    config = exact_config(str(TINY / "llama"), {"device": "torch", "pipeline_parallel_size": 2})
    for stage, expected in enumerate(([10, 20], [30, 40])):
        rank = json.dumps({"stage": [stage, 2], "rank": 0, "heads": [0, 4]}), "{}"
        with reading_ahead(tmp_path, config, rank):
            ended()
        assert sorted(count for _, count in reads) == expected
        reads.clear()


def test_no_more_is_read_than_fits(
    tmp_path: Path, reads: list[Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_start, "available_memory", lambda: 2 * 9000)
    sharded(tmp_path, [20_000])
    with reading_ahead(tmp_path, exact_config(str(TINY / "llama"), {"device": "torch"}), None):
        ended()
    assert sorted(reads) == [(0, 4096), (4096, 4096)]


def test_what_is_in_memory_is_not_read_again(tmp_path: Path) -> None:
    (file,) = sharded(tmp_path, [50_000])
    file.read_bytes()
    with file.open("rb") as opened:
        assert gpu_start._is_cached(opened.fileno(), 0, 50_000)


def test_what_is_half_in_memory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(_descriptor: int, _memories: list[memoryview], offset: int, _flags: int) -> int:
        if offset >= 49_000:
            raise BlockingIOError(11, "not in memory")
        return 1

    monkeypatch.setattr(gpu_start.os, "preadv", noted)
    (file,) = sharded(tmp_path, [50_000])
    with file.open("rb") as opened:
        assert not gpu_start._is_cached(opened.fileno(), 0, 50_000)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_left_to_the_load(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with reading_ahead(tmp_path, exact_config(str(TINY / "llama"), {"device": "torch"}), None):
        ended()


@pytest.mark.parametrize("name", ["absent", "absent.gguf"])
def test_what_cannot_be_read_is_left_to_the_load(tmp_path: Path, name: str) -> None:
    with reading_ahead(
        tmp_path / name, exact_config(str(TINY / "llama"), {"device": "torch"}), None
    ):
        ended()


def test_the_context_is_that_of_the_ranks_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def number(_device: object, index: int) -> int:
        calls.append(f"device {index}")
        return 0

    driver = SimpleNamespace(
        cuInit=lambda flags: calls.append(f"init {flags}") or 0,
        cuDeviceGet=number,
        cuDevicePrimaryCtxRetain=lambda *_: calls.append("context"),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    open_context(3)
    ended()
    assert calls == ["init 0", "device 3", "context"]


def test_without_a_driver_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    open_context(0)
    ended()
