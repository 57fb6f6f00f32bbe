"""The rate at which all CPUs of this process read memory together."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Mapping

from penstock.config.machine import available_memory, cpu_count

MOST_BYTES = 256 << 20
"""Bytes that a thread reads in a pass: more than its share of any cache."""
SHARE = 4
"""A quarter of the free memory at most is filled."""
SECONDS = 1.5


def memory_rate(seconds: float = SECONDS) -> Mapping[str, float]:
    """GB per second of all threads, one for each CPU. memchr of the C library searches, at vector
    width and without the interpreter's lock, for a byte that is not there.
    """
    threads = cpu_count()
    size = min(MOST_BYTES, available_memory() // SHARE // threads) & -mmap.PAGESIZE
    search = ctypes.CDLL(None).memchr
    search.argtypes, search.restype = (
        (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t),
        ctypes.c_void_p,
    )
    filled, passes = threading.Barrier(threads + 1), [0] * threads

    def read(at: int) -> None:
        with mmap.mmap(-1, size) as memory:
            view = (ctypes.c_char * size).from_buffer(memory)
            # The thread's own writes place the pages on its NUMA node.
            ctypes.memset(view, 1, size)
            filled.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                search(ctypes.addressof(view), 0, size)
                passes[at] += 1
            del view

    workers = [threading.Thread(target=read, args=(at,), daemon=True) for at in range(threads)]
    for worker in workers:
        worker.start()
    filled.wait()
    begin = time.monotonic()
    for worker in workers:
        worker.join()
    passed = time.monotonic() - begin
    return {"gb_per_s": sum(passes) * size / passed / 1e9, "threads": threads, "bytes": size}
