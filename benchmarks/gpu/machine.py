"""Measures the ceilings of the machine (bandwidth, rate of products), to which the other parts are
compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.gpu import bandwidth
from benchmarks.gpu.items import Results
from benchmarks.gpu.timing import Timing

COPY, READ, MEMORY = (f"{name}_bytes_per_s" for name in ("copy", "read", "memory"))
"""Keys in the results. MEMORY is the ceiling of the memory bandwidth: the larger of the
other two.
"""


@dataclass(frozen=True)
class Ceilings:
    """The measured ceilings; zero if they were not measured."""

    bandwidth: float = 0.0
    """Bytes per second of device memory: read by a sum, or read and written by a copy, whichever is
    more.
    """
    rate: float = 0.0
    """Operations per second in a large bfloat16 product."""


def ceilings(path: Path) -> Ceilings:
    """The ceilings that the part `machine` wrote to a file in the directory of `path`."""
    found = path.with_name("machine.json")
    facts = json.loads(found.read_text()) if found.exists() else {}
    return Ceilings(facts.get(MEMORY, 0.0), facts.get("gemm_operations_per_s", 0.0))


def measure(results: Results, timing: Timing) -> None:
    _versions(results, timing)
    results.item("copy", lambda: _copy(results, timing))
    results.item("read", lambda: _read(results, timing))
    results.item("gemm", lambda: _gemm(results, timing))


def _versions(results: Results, timing: Timing) -> None:
    results.note("torch", torch.__version__)
    try:
        import triton

        results.note("triton", triton.__version__)
    except ModuleNotFoundError:
        results.note("triton", "none")
    if timing.dry:
        results.note("device", "CPU")
        return
    results.note("device", torch.cuda.get_device_name())
    results.note("devices", torch.cuda.device_count())
    results.note("memory, bytes", torch.cuda.mem_get_info()[1])


def _copy(results: Results, timing: Timing) -> None:
    size = 1 << (20 if timing.dry else 32)
    source = torch.ones(size, dtype=torch.uint8, device=timing.device)
    target = torch.empty_like(source)
    seconds = timing.of(lambda: target.copy_(source), calls=3)
    results.note(COPY, 2 * size / seconds)
    results.note(MEMORY, 2 * size / seconds)


def _read(results: Results, timing: Timing) -> None:
    """Record the best read bandwidth of several sums over 8 GiB, or over half of the free memory if
    that is less.
    """
    count = 1 << (17 if timing.dry else 30)
    if not timing.dry:
        free = torch.cuda.mem_get_info()[0]
        while 16 * count > free:
            count //= 2
    words = torch.ones(count, dtype=torch.int64, device=timing.device)
    rates = {"torch.sum": words.nbytes / timing.of(words.sum, calls=2)}
    for block in () if timing.dry else bandwidth.BLOCKS:
        for programs in bandwidth.PROGRAMS:
            name = f"{programs} programs, {block} words"
            if int(bandwidth.sum_triton(words, block, programs).sum()) != count:
                results.fail(name, "the sum is wrong")
                continue
            seconds = timing.of(
                lambda block=block, programs=programs: bandwidth.sum_triton(words, block, programs),
                calls=2,
            )
            rates[name] = words.nbytes / seconds
    for name, rate in rates.items():
        results.row("reads", by=name, GB_per_s=rate / 1e9)
    read = max(rates.values())
    results.note(READ, read)
    results.note(MEMORY, max(read, results.value(COPY, 0.0)))
    rated = None if timing.dry else bandwidth.datasheet()
    results.note("datasheet_bytes_per_s", "unknown" if rated is None else rated)


def _gemm(results: Results, timing: Timing) -> None:
    n = 64 if timing.dry else 8192
    a, b = (torch.randn(n, n, device=timing.device).to(timing.dtype) for _ in range(2))
    seconds = timing.of(lambda: a @ b, calls=5)
    results.note("gemm_operations_per_s", 2 * n**3 / seconds)
