"""Time to load weights on processors: the file on the disk, in memory, and the disk alone.

    python benchmarks/load_time.py MODEL.gguf [--repeats 5]

Each load is a process of its own, without a server; its processor time is counted from before the
load to behind it. Before a load from the disk, and before the disk is read alone, the kernel is
asked to drop the file from its page cache; where a host below keeps it, the disk is faster than it
is. Prints medians, and the fastest in brackets.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from penstock.bench.compare.machine import machine

PIECE = 8 << 20


def evict(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(file: Path) -> float:
    began = time.perf_counter()
    with file.open("rb", buffering=0) as opened:
        buffer = bytearray(PIECE)
        while opened.readinto(buffer):
            pass
    return time.perf_counter() - began


def load(file: Path) -> dict[str, float]:
    """Seconds, and processor seconds of the program and of the system, in this process."""
    from penstock.backends.cpu import load as load_weights
    from penstock.config import Raw, resolve
    from penstock.engine.startup import read_model

    config = resolve({"device": Raw("--device", ("cpu",))}, str(file), "none").engine
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    backend = load_weights(config, read_model(config), None)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    backend.close()
    return {
        "seconds": seconds,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
    }


def loaded(file: Path) -> dict[str, float]:
    command = [sys.executable, __file__, str(file), "--once"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(text))


def measured(prepare: Callable[[], object], file: Path, repeats: int) -> list[dict[str, float]]:
    found = []
    for _ in range(repeats):
        prepare()
        found.append(loaded(file))
    return found


def shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    file: Path = options.file
    if options.once:
        print(json.dumps(load(file)))
        return
    alone = []
    for _ in range(options.repeats):
        evict(file)
        alone.append(read(file))
    forms = {
        "from the disk": measured(lambda: evict(file), file, options.repeats),
        "from memory": measured(lambda: read(file), file, options.repeats),
    }
    print(f"{file.name}, {file.stat().st_size / 1e9:.2f} GB; {', '.join(machine().values())}\n")
    print("| | seconds | processor: program | processor: system |\n|---|--:|--:|--:|")
    print(f"| the disk alone | {shown(alone)} | | |")
    for name, runs in forms.items():
        columns = (shown([run[key] for run in runs]) for key in ("seconds", "user", "system"))
        print(f"| load {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
