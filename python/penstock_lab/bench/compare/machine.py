"""Properties of the machine that affect the numbers of a comparison."""

from __future__ import annotations

import ctypes
import platform
import threading
import time

from penstock.config.machine import available_memory, cpu_count, cpuinfo

INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "BF16",
    "amx_int8": "AMX",
}
"""CPU flags that decide which kernels Penstock uses, with the names to print."""
READ_BYTES = 1 << 30
"""Bytes read in one lap of the bandwidth measurement: more than most CPU caches hold. A quarter of
the available memory is the limit.
"""
LAPS = 5


def machine() -> dict[str, str]:
    """Processor, measured memory bandwidth and kernel of this machine."""
    rate = memory_bandwidth(threads := cpu_count())
    return {
        "processor": processor(),
        "memory": f"{rate / 1e9:.0f} GB/s (threads: {threads})",
        "kernel": platform.release().split("-")[0],
    }


def processor() -> str:
    """Text with the number, name, family and model of the processors, and their `INSTRUCTIONS`."""
    if not (names := cpuinfo("model name")):
        return platform.machine()
    family, model = (cpuinfo(key) or ["?"] for key in ("cpu family", "model"))
    flags = (cpuinfo("flags") or [""])[0].split()
    known = " ".join(name for flag, name in INSTRUCTIONS.items() if flag in flags)
    return f"{len(names)} x {names[0]} (family {family[0]} model {model[0]}; {known})"


def memory_bandwidth(threads: int) -> float:
    """Memory read bandwidth of `threads` threads in bytes per second: the best of several laps.

    Each thread compares two equal buffers with C's `memcmp`, which reads both in full. ctypes calls
    it without the GIL.
    """
    half = min(READ_BYTES, available_memory() // 4) // 2 // threads
    buffers = [(_filled(half), _filled(half)) for _ in range(threads)]
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def lap() -> float:
        readers = [
            threading.Thread(
                target=compare, args=(ctypes.addressof(one), ctypes.addressof(other), half)
            )
            for one, other in buffers
        ]
        began = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return 2 * half * threads / (time.perf_counter() - began)

    return max(lap() for _ in range(LAPS))


def _filled(size: int) -> ctypes.Array[ctypes.c_char]:
    """A buffer of `size` bytes, all written. Unwritten pages would all map to one zero page, which
    stays in the CPU cache.
    """
    buffer = (ctypes.c_char * size)()
    ctypes.memset(buffer, 1, size)
    return buffer
