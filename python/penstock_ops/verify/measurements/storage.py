"""The rate at which files of a directory are read, without the page cache."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

BLOCK = 16 << 20
THREADS = 8
SECONDS = 10.0
LEAST_FILE = 1 << 20
"""Smaller files are no weights and no chunks."""
MOST_FILES = 4096


def read_rate(directory: str, seconds: float = SECONDS) -> Mapping[str, float]:
    """GB per second of several threads that read the largest files in blocks of 16 MiB for at most
    `seconds`. `is_direct` is 1 if O_DIRECT was possible for all; otherwise pages are dropped from
    the cache first, as far as the kernel does.
    """
    blocks: SimpleQueue[tuple[Path, int]] = SimpleQueue()
    for block in _blocks(Path(directory)):
        blocks.put(block)
    reader = _Reader(blocks, time.monotonic() + seconds)
    begin = time.monotonic()
    workers = [threading.Thread(target=reader.run, daemon=True) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if reader.error:
        raise reader.error
    rate = reader.bytes / (time.monotonic() - begin) / 1e9
    return {"gb_per_s": rate, "bytes": reader.bytes, "is_direct": int(reader.is_direct)}


def _blocks(directory: Path) -> Iterator[tuple[Path, int]]:
    """Files and offsets, the largest files first."""
    sizes: list[tuple[int, Path]] = []
    for parent, _, names in os.walk(directory):
        for name in names[: MOST_FILES - len(sizes)]:
            path = Path(parent, name)
            # An engine may evict chunks of a tier meanwhile.
            with suppress(FileNotFoundError):
                size = path.stat().st_size if path.is_file() else 0
                if size >= LEAST_FILE:
                    sizes.append((size, path))
    for size, path in sorted(sizes, key=lambda each: (-each[0], each[1])):
        for offset in range(0, size, BLOCK):
            yield path, offset


class _Reader:
    """Threads take blocks from a queue until it is empty or the time is over."""

    def __init__(self, blocks: SimpleQueue[tuple[Path, int]], end: float) -> None:
        self._blocks = blocks
        self._end = end
        self._lock = threading.Lock()
        self.bytes = 0
        self.is_direct = True
        self.error: OSError | None = None

    def run(self) -> None:
        # O_DIRECT needs an aligned buffer, as an anonymous map is.
        with mmap.mmap(-1, BLOCK) as buffer:
            while time.monotonic() < self._end and not self.error:
                try:
                    path, offset = self._blocks.get_nowait()
                    count, is_direct = _read(path, offset, buffer)
                except Empty:
                    return
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self.error = error
                    return
                with self._lock:
                    self.bytes += count
                    self.is_direct = self.is_direct and is_direct


def _read(path: Path, offset: int, buffer: mmap.mmap) -> tuple[int, bool]:
    """Read one block. Returns its bytes, and whether O_DIRECT was possible."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        is_direct = True
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        is_direct = False
        os.posix_fadvise(descriptor, offset, BLOCK, os.POSIX_FADV_DONTNEED)
    try:
        return os.preadv(descriptor, [buffer], offset), is_direct
    finally:
        os.close(descriptor)
