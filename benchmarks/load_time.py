"""Time to load weights: files on disk, in memory, and the disk alone.

    python benchmarks/load_time.py MODEL [--device cpu torch] [--before TREE] [--repeats 5]
    python benchmarks/load_time.py MODEL --write dense|experts      a checkpoint of random numbers

MODEL is a GGUF file or a directory of safetensors. `--device ring` is the host's part of a load to
a GPU: torch's load through a ring of buffers, without copies from it. Each load is a separate
process without a server; its CPU time is counted from before to after the load. With `--before`,
loads alternate between this source tree and another one (a git worktree with the native module).
Before a load from disk, and before the disk is read alone, the script drops the files from
its page cache. If a hypervisor's host caches them, the disk appears faster than it is.
Prints medians, with the fastest in brackets.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.shapes import Shape  # noqa: E402
from penstock_lab.bench.compare.machine import machine  # noqa: E402

if TYPE_CHECKING:
    from penstock.model import ModelInfo

PIECE = 8 << 20
SHAPES = {
    "dense": Shape(12, 1024, 8, 2, 4096, vocabulary=32768),
    "experts": Shape(8, 512, 8, 2, 256, 96, 4, vocabulary=16384),
}
"""Shapes of checkpoints to write: 0.5 GB in 135 tensors, and 0.7 GB in 2,379."""


def write(directory: Path, shape: Shape) -> None:
    """Write a checkpoint. Tensors are in the order of their names, as in published files."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(shape.config(4096)))
    header, at, chance = {}, 0, Random(1)
    for name, size in sorted(shape.tensors()):
        end = at + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [at, end]}
        at = end
    written = json.dumps(header).encode()
    # Weights of about 0.01, with random sign and fraction.
    some = b"".join(
        struct.pack("<H", chance.getrandbits(1) << 15 | 0x3C00 | chance.getrandbits(8))
        for _ in range(1 << 19)
    )
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(written)) + written)
        for start in range(0, at, len(some)):
            file.write(some[: at - start])


def files_of(model: Path) -> list[Path]:
    return sorted(model.glob("*.safetensors")) if model.is_dir() else [model]


def evict(files: Sequence[Path]) -> None:
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(files: Sequence[Path]) -> float:
    began = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            buffer = bytearray(PIECE)
            while opened.readinto(buffer):
                pass
    return time.perf_counter() - began


def load(model: Path, device: str) -> dict[str, float]:
    """Load the model in this process; returns the wall seconds, and the CPU seconds in user and
    system mode.
    """
    from penstock.config import Raw, resolve
    from penstock.engine.startup import read_model

    if device == "cpu":
        from penstock.backends.cpu import load as load_weights
    else:
        from penstock.backends.torch import load as load_weights  # type: ignore[assignment]

    name = "torch" if device == "ring" else device
    config = resolve({"device": Raw("--device", (name,))}, str(model), "none").engine
    info = read_model(config)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    thread = time.thread_time()
    if device == "ring":
        fill_ring(model, info)
    else:
        load_weights(config, info, None)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
        "thread": time.thread_time() - thread,
    }


def fill_ring(model: Path, info: ModelInfo) -> None:
    """Read all weights into the buffers of a ring as for a GPU, and request copies that move almost
    no data.
    """
    import torch

    from penstock.backends.torch.load.checkpoint import Checkpoint
    from penstock.backends.torch.load.load import load_weights
    from penstock.backends.torch.load.recipes import Source
    from penstock.backends.torch.load.uploads import Ring, Uploads
    from penstock.backends.torch.shard import whole

    class Nowhere:
        def buffer(self, size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.uint8)

        def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
            # Copy one element only, so that there are as many calls as in a real load.
            target[:1].copy_(source[:1], non_blocking=True)

        def mark(self) -> Nowhere:
            return self

        def query(self) -> bool:
            return True

        def synchronize(self) -> None: ...

    class Unchecked(Source):
        def check_finite(self) -> None:
            """Does nothing: no weights were copied that could be checked."""

    with Uploads(Ring(Nowhere(), torch.device("cpu"))) as uploads:
        source = Unchecked(Checkpoint(model), torch.bfloat16, uploads)
        load_weights(source, info.spec, info.weights, whole(info.spec), 1)


def loaded(model: Path, device: str, tree: Path) -> dict[str, float]:
    command = [sys.executable, __file__, str(model), "--once", "--device", device]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    paths = [str(tree / "python"), *(path for path in others if path != str(ROOT / "python"))]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return dict(json.loads(done.stdout))


def shown(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f})"


def compared(
    model: Path, devices: Sequence[str], trees: dict[str, Path], repeats: int
) -> dict[str, list[dict[str, float]]]:
    """The results of all loads, by row of the table. Rows alternate, so that disturbances affect
    all of them.
    """
    files = files_of(model)
    prepare: dict[str, Callable[[], object]] = {
        "the disk": lambda: evict(files),
        "memory": lambda: read(files),
    }
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        for place, ready in prepare.items():
            for device, (name, tree) in product(devices, trees.items()):
                if device != "ring" or tree == ROOT:
                    ready()
                    row = f"{device}, from {place}{name}"
                    found.setdefault(row, []).append(loaded(model, device, tree))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", nargs="+", default=["cpu"], choices=("cpu", "torch", "ring"))
    parser.add_argument("--before", type=Path, help="another source tree, loaded in turns")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", choices=SHAPES, help="write a checkpoint, and load nothing")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    model: Path = options.model
    if options.write:
        write(model, SHAPES[options.write])
        return
    if options.once:
        print(json.dumps(load(model, options.device[0])))
        return
    files, alone = files_of(model), []
    for _ in range(options.repeats):
        evict(files)
        alone.append(read(files))
    trees = {"": ROOT}
    if options.before:
        trees = {", before": options.before.resolve(), ", now": ROOT}
    forms = compared(model, options.device, trees, options.repeats)
    size = sum(file.stat().st_size for file in files) / 1e9
    print(f"{model.name}, {size:.2f} GB; {', '.join(machine().values())}\n")
    print("| | seconds | GB/s | processor: program | system | first thread |")
    print("|---|--:|--:|--:|--:|--:|")
    print(f"| the disk alone | {shown(alone)} | {size / statistics.median(alone):.2f} | | | |")
    for name, runs in forms.items():
        columns = [
            shown([run[key] for run in runs]) for key in ("seconds", "user", "system", "thread")
        ]
        columns.insert(1, f"{size / statistics.median(run['seconds'] for run in runs):.2f}")
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
