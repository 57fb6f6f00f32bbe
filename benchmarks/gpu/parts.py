"""One part of benchmarks/gpu/run.py: `python -m benchmarks.gpu.parts PART OUT.json [--dry]`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()

import torch  # noqa: E402

IMPORTED = time.perf_counter() - BEGAN

from benchmarks.gpu import kernels, models  # noqa: E402
from benchmarks.gpu.timing import Timing  # noqa: E402


class Results:
    """Rows by title, written at each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {}

    def note(self, title: str, value: Any) -> None:
        self._found[title] = value
        # Renamed into place: a part may be killed while it writes.
        written = self._path.with_suffix(".part")
        written.write_text(json.dumps(self._found, indent=1))
        written.replace(self._path)
        print(title, value[-1] if isinstance(value, list) else value, flush=True)

    def row(self, title: str, **columns: Any) -> None:
        self.note(title, [*self._found.get(title, []), columns])


def machine(results: Results, timing: Timing) -> None:
    """Ceilings that the other parts are compared with."""
    results.note("torch", torch.__version__)
    try:
        import triton

        results.note("triton", triton.__version__)
    except ModuleNotFoundError:
        results.note("triton", "none")
    name = "CPU" if timing.dry else torch.cuda.get_device_name()
    results.note("device", name)
    size = 1 << (20 if timing.dry else 32)
    source = torch.ones(size, dtype=torch.uint8, device=timing.device)
    target = torch.empty_like(source)
    seconds = timing.of(lambda: target.copy_(source), calls=3)
    results.note("copy_bytes_per_s", 2 * size / seconds)
    n = 64 if timing.dry else 8192
    a = torch.randn(n, n, device=timing.device).to(timing.dtype)
    b = torch.randn(n, n, device=timing.device).to(timing.dtype)
    seconds = timing.of(lambda: a @ b, calls=5)
    results.note("gemm_operations_per_s", 2 * n**3 / seconds)


def ceilings(path: Path) -> tuple[float, float]:
    """Bytes and operations a second, as the part "machine" measured them; zeros without it."""
    found = path.with_name("machine.json")
    facts = json.loads(found.read_text()) if found.exists() else {}
    return facts.get("copy_bytes_per_s", 0.0), facts.get("gemm_operations_per_s", 0.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    results, timing = Results(options.out), Timing(options.dry)
    if options.part == "machine":
        machine(results, timing)
    elif options.part == "correctness":
        kernels.correctness(results, timing)
    elif options.part == "kernels":
        kernels.speeds(results, timing, ceilings(options.out))
    else:
        results.row("start-up", phase="import torch", seconds=IMPORTED)
        models.measure(results, timing, options.part, ceilings(options.out))


if __name__ == "__main__":
    main()
