"""What a rank on a GPU begins before torch is there, whose import takes about three seconds: files
come into the page cache, and the driver makes its context.
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
"""Bytes of one call: an import holds Python's lock for most of a second at a time."""
SCRATCH = 1 << 20
"""Read to again and again, so that it stays in a core's cache."""
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def rank_of_host(config: EngineConfig, rank: tuple[str, str] | None) -> int:
    """Number of a rank among those of its host, whose GPU of that number it takes. A rank on Ray
    sees its own alone.
    """
    if rank is None or config.parallel.backend == "ray":
        return 0
    shard = json.loads(rank[0])
    number = shard["stage"][0] * (len(shard["heads"]) - 1) + shard["rank"]
    return config.parallel.number_on_node(number)


def weight_files(path: Path) -> list[Path]:
    """Files of a checkpoint, a directory of safetensors or a GGUF file, in their order."""
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
    """Threads read a rank's part of the files meanwhile, as far as memory is free. What is wrong
    with a file is for the load to find.
    """
    stage, stages = (0, 1) if rank is None else json.loads(rank[0])["stage"]
    try:
        files = weight_files(path)
        # Layers lie in the files in their order, as near as it matters here.
        own = files[len(files) * stage // stages : -(-len(files) * (stage + 1) // stages)]
        chunks = deque(_chunks(own, available_memory() // 2))
    except (OSError, PenstockError):
        chunks = deque()
    # Ranks of a host want the same pages: each begins at another place.
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
    """One call, which holds no lock of Python's."""
    if _is_cached(descriptor, offset, size):
        return
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_SEQUENTIAL)
    os.preadv(descriptor, [scratch] * -(-size // SCRATCH), offset)


def _is_cached(descriptor: int, offset: int, size: int) -> bool:
    """Whether pages at both ends and between them are in memory."""
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
    """Have the driver make the context of a GPU that torch will use, on a thread of its own. What
    fails here fails again where it is reported.
    """
    threading.Thread(target=_open_context, args=(index,), name="context", daemon=True).start()


def _open_context(index: int) -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        # Kept as long as the process: the context is the one of CUDA's runtime.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
