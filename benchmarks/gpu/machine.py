"""Ceilings of the machine, which the other parts are compared with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.gpu.items import Results
from benchmarks.gpu.timing import Timing


@dataclass(frozen=True)
class Ceilings:
    """As measured; zeros where they were not."""

    bandwidth: float = 0.0
    """Bytes a second that a copy within the device's memory reads and writes."""
    rate: float = 0.0
    """Operations a second of a large product in bfloat16."""


def ceilings(path: Path) -> Ceilings:
    """Those that the part "machine" wrote beside `path`."""
    found = path.with_name("machine.json")
    facts = json.loads(found.read_text()) if found.exists() else {}
    return Ceilings(facts.get("copy_bytes_per_s", 0.0), facts.get("gemm_operations_per_s", 0.0))


def measure(results: Results, timing: Timing) -> None:
    _versions(results, timing)
    results.item("copy", lambda: _copy(results, timing))
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
    results.note("copy_bytes_per_s", 2 * size / seconds)


def _gemm(results: Results, timing: Timing) -> None:
    n = 64 if timing.dry else 8192
    a, b = (torch.randn(n, n, device=timing.device).to(timing.dtype) for _ in range(2))
    seconds = timing.of(lambda: a @ b, calls=5)
    results.note("gemm_operations_per_s", 2 * n**3 / seconds)
