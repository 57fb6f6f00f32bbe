"""Measures transfers of KV blocks between GPU memory and pinned host memory, or files."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.items import ABSENT, Results
from benchmarks.gpu.shapes import SHAPES, TINY, Shape
from benchmarks.gpu.sizes import BLOCK
from benchmarks.gpu.timing import Timing
from penstock.backends.torch.async_copy import Copied, Copies, DeviceCopies, Pair
from penstock.backends.torch.kv.copy_workers import Lanes
from penstock.backends.torch.kv.pool import Layout, make_pools
from penstock.backends.torch.kv.ram import RamTier
from penstock.backends.torch.kv.staging import PinnedSlots
from penstock.core.transfer import RAM, Transfer, TransferKind

END_S = 10.0
"""Timeout in seconds of a copy."""
REMEDY = "pip install 'penstock[gds]'"


def measure(results: Results, timing: Timing) -> None:
    """Run all measurements, with blocks of Qwen3-8B (9 MiB each)."""
    shape, blocks = (TINY, 8) if timing.dry else (SHAPES["Qwen3-8B"], 128)
    results.item("plain copies", lambda: _plain(results, timing, shape, blocks))
    results.item("RAM tier", lambda: _ram(results, timing, shape, blocks))
    results.item("files", lambda: _files(results, timing, shape, blocks // 2))


def _row(results: Results, way: str, rate: float, right: bool | None) -> None:
    results.row("copies", way=way, GB_per_s=rate, right=right)
    if right is False:
        results.fail(way, "other bytes arrived")


def _layout(shape: Shape, timing: Timing) -> Layout:
    return Layout(shape.layers, shape.kv_heads, shape.d, False, BLOCK, timing.dtype)


def _rate(timing: Timing, size: int, work: Callable[[], object]) -> float:
    """Bytes per second at which `work` transfers `size` bytes: the better of two runs."""
    seconds = []
    for _ in range(2):
        timing.wait()
        began = time.perf_counter()
        work()
        timing.wait()
        seconds.append(time.perf_counter() - began)
    return size / min(seconds)


def _plain(results: Results, timing: Timing, shape: Shape, blocks: int) -> None:
    """Measure one large copy, whose rate is the ceiling for the other transfers."""
    size = blocks * _layout(shape, timing).block_bytes
    inside = torch.ones(size, dtype=torch.uint8, device=timing.device)
    outside = torch.ones(size, dtype=torch.uint8, pin_memory=not timing.dry)
    for name, target, source in (("load", inside, outside), ("store", outside, inside)):
        rate = _rate(timing, size, lambda t=target, s=source: t.copy_(s, non_blocking=True))
        _row(results, f"one copy, {name}", rate / 1e9, None)


def _ram(results: Results, timing: Timing, shape: Shape, blocks: int) -> None:
    """Measure the tier of `--kv-tier ram`: blocks are stored, overwritten in the pool, and loaded
    again.
    """
    layout = _layout(shape, timing)
    pools = make_pools([layout], [blocks], torch.device(timing.device))
    own = pools[0].blocks.normal_()
    kept = own.clone()
    copies: Copies = HostCopies() if timing.dry else DeviceCopies(torch.device("cuda", 0))
    slots, answers = PinnedSlots(pools, blocks, copies), SimpleQueue[Any]()
    lanes = Lanes(answers.put)
    tier = RamTier(slots, copies, lanes, answers.put)
    places = array("i", reversed(range(blocks)))
    for number, kind in enumerate((TransferKind.STORE, TransferKind.LOAD), 1):
        timing.wait()
        tier.submit(Transfer(number, kind, RAM, array("i", range(blocks)), places))
        moved = answers.get(timeout=60.0)
        if isinstance(moved, Exception):
            raise moved
        right = torch.equal(own, kept)
        rate = moved.bytes / max(moved.seconds, 1e-9) / 1e9
        _row(results, f"RAM tier, {kind.name}", rate, right)
        own.zero_()
    ended = [lane.end(time.monotonic() + END_S) for lane in (lanes.outward, lanes.inward)]
    if all(ended):
        slots.close()
    else:
        slots.leave_behind()
        raise RuntimeError(f"a copy has not ended after {END_S:.0f} s")


class HostCopies:
    """Copies within host memory, in place of a GPU's, for dry runs."""

    def pin(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def unpin(self, memory: Tensor) -> None:
        """Does nothing, because this memory was not pinned."""

    def to_host(self, pairs: Sequence[Pair]) -> Copied:
        return _CopiedNow(pairs)

    to_device = to_host


class _CopiedNow:
    def __init__(self, pairs: Sequence[Pair]) -> None:
        began = time.perf_counter()
        for target, source in pairs:
            target.copy_(source)
        self._seconds = time.perf_counter() - began

    def result(self) -> float:
        return self._seconds


def _files(results: Results, timing: Timing, shape: Shape, blocks: int) -> None:
    """Measure a file that is copied through pinned memory, and with kvikio if that is installed."""
    size = blocks * _layout(shape, timing).block_bytes
    memory = torch.randint(0, 256, (size,), dtype=torch.uint8, device=timing.device)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "blocks"
        host = torch.empty(size, dtype=torch.uint8, pin_memory=not timing.dry)
        _write(path, host.copy_(memory))
        into = torch.zeros_like(memory)
        rate = _rate(timing, size, lambda: _read(path, host, into))
        right = torch.equal(into, memory)
        _row(results, "file, page cache", rate / 1e9, right)
        for mode in ("OFF", "ON"):
            title = f"kvikio, compatibility mode {mode}"
            results.item(
                title, lambda m=mode, t=title: _kvikio(results, timing, memory, path, m, t)
            )


def _write(path: Path, host: Tensor) -> None:
    with path.open("wb") as file:
        file.write(memoryview(host.numpy()))
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, host: Tensor, into: Tensor) -> None:
    with path.open("rb", buffering=0) as file:
        view, at = memoryview(host.numpy()), 0
        while at < len(view):
            at += file.readinto(view[at:])
    into.copy_(host, non_blocking=True)


def _kvikio(
    results: Results, timing: Timing, memory: Tensor, path: Path, mode: str, title: str
) -> None:
    """Measure blocks written to a file and read back, by GPUDirect Storage (mode OFF) or by POSIX
    calls (mode ON).
    """
    into = torch.zeros_like(memory)
    own = path.with_name(f"kvikio-{mode}")
    try:
        kvikio = importlib.import_module("kvikio")
        importlib.import_module("kvikio.defaults")
        kvikio.defaults.set("compat_mode", getattr(kvikio.CompatMode, mode))
        for name, flags, tensor in (("store", "w", memory), ("load", "r", into)):
            rate = _rate(timing, len(memory), lambda f=flags, t=tensor: _moved(kvikio, own, f, t))
            right = torch.equal(into, memory) if flags == "r" else None
            _row(results, f"{title}, {name}", rate / 1e9, right)
    except ImportError as error:
        results.row(ABSENT, item=title, reason=f"{error}: {REMEDY}")
    except RuntimeError as error:
        # Without the GPUDirect driver, or on a file system without its support, this is no failure.
        # POSIX calls need only CUDA's driver, so their errors are failures, and so are torch's GPU
        # errors.
        of_gpu = isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError))
        if of_gpu or (mode == "ON" and not timing.dry):
            raise
        results.row(ABSENT, item=title, reason=str(error))


def _moved(kvikio: Any, path: Path, flags: str, tensor: Tensor) -> None:
    memory = tensor.numpy() if tensor.device.type == "cpu" else tensor
    with kvikio.CuFile(str(path), flags) as file:
        begin = file.pread if flags == "r" else file.pwrite
        done = begin(memory, len(tensor)).get()
    if done != len(tensor):
        raise OSError(f"kvikio moved {done} of {len(tensor)} bytes")
