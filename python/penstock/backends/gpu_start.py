"""Start-up work of a GPU rank during the import of torch (about three seconds): read the weight
files into the page cache, and create the driver's context.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.config import EngineConfig
from penstock.config.machine import available_memory, cpu_count
from penstock.core import PenstockError
from penstock.model.files import weight_map

THREADS = 8
CHUNK = 256 << 20
"""Bytes per read. Large, because a thread needs the GIL between two reads, and the import of torch
holds it for most of a second at a time.
"""
SCRATCH = 1 << 20
"""Bytes of the buffer that all reads overwrite, small enough to stay in a core's cache."""
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def rank_of_host(config: EngineConfig, rank: tuple[str, str] | None) -> int:
    """Index of the rank among the ranks of its host, which is also the index of its GPU. 0 on Ray,
    where each rank sees only its own GPU.
    """
    if rank is None or config.parallel.backend == "ray":
        return 0
    shard = json.loads(rank[0])
    number = shard["stage"][0] * (len(shard["heads"]) - 1) + shard["rank"]
    return config.parallel.number_on_node(number)


def weight_files(path: Path) -> list[Path]:
    """Weight files of a checkpoint (a directory of safetensors, or a GGUF file, which may be
    split), in order.
    """
    if path.is_dir():
        index = path / "model.safetensors.index.json"
        if not index.is_file():
            return [path / "model.safetensors"]
        return [path / name for name in sorted(set(weight_map(index).values()))]
    split = SPLIT.search(path.name)
    if split is None:
        return [path]
    stem, count = path.name[: split.start()], int(split[2])
    return [path.with_name(f"{stem}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]


@contextmanager
def reading_ahead(path: Path, config: EngineConfig, rank: tuple[str, str] | None) -> Iterator[None]:
    """Inside the block, threads read this rank's weight files into the page cache, at most half of
    the host's free memory in total. Errors are ignored: the load reports them.
    """
    stage, stages = (0, 1) if rank is None else json.loads(rank[0])["stage"]
    try:
        files = weight_files(path)
        # This share assumes that the files hold the layers roughly in order.
        own = files[len(files) * stage // stages : -(-len(files) * (stage + 1) // stages)]
        chunks = deque(_chunks(own, available_memory() // 2))
    except (OSError, PenstockError):
        chunks = deque()
    # The ranks of a host share the page cache, so each starts to read at a different offset.
    ranks = config.parallel.most_ranks_on_a_node
    chunks.rotate(-(len(chunks) * (rank_of_host(config, rank) % ranks) // ranks))
    for number in range(min(THREADS, cpu_count(), len(chunks))):
        name = f"read-ahead-{number}"
        threading.Thread(target=_read_all, args=(chunks,), name=name, daemon=True).start()
    try:
        yield
    finally:
        chunks.clear()


def _chunks(files: Sequence[Path], most: int) -> Iterator[tuple[Path, int, int]]:
    for file in files:
        size = file.stat().st_size
        for offset in range(0, size, CHUNK):
            count = min(CHUNK, size - offset)
            most -= count
            if most < 0:
                return
            yield file, offset, count


def _read_all(chunks: deque[tuple[Path, int, int]]) -> None:
    try:
        scratch = memoryview(bytearray(SCRATCH))
        while True:
            file, offset, size = chunks.popleft()
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _read(descriptor, offset, size, scratch)
            finally:
                os.close(descriptor)
    except (IndexError, OSError, MemoryError):
        return


def _read(descriptor: int, offset: int, size: int, scratch: memoryview) -> None:
    """Read `size` bytes of a file in one system call, which releases the GIL."""
    if _is_cached(descriptor, offset, size):
        return
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_SEQUENTIAL)
    os.preadv(descriptor, [scratch] * -(-size // SCRATCH), offset)


def _is_cached(descriptor: int, offset: int, size: int) -> bool:
    """True if a sample of the range's pages, both ends included, is in the page cache."""
    page = memoryview(bytearray(1))
    inside = range(offset, offset + size, max(1, size // 8))
    try:
        for at in (*inside, offset + size - 1):
            os.preadv(descriptor, [page], at, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return False
        raise
    return True


def open_context(index: int) -> None:
    """Create the CUDA context that torch will use, on a background thread. Errors are ignored,
    because torch encounters and reports them later.
    """
    threading.Thread(target=_open_context, args=(index,), name="context", daemon=True).start()


def _open_context(index: int) -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        # Never released: the CUDA runtime uses this primary context until the process ends.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
