"""Divides the items of a part among several processes, because Triton compiles on one core. Its
cache on disk then has the kernels that any of the processes compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from benchmarks.gpu.items import Results

MOST = 12
"""Maximum number of processes. Each takes half a gigabyte of GPU memory."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    own: int
    all: int

    @staticmethod
    def parse(text: str) -> Share:
        own, _, all_ = text.partition("/")
        return Share(int(own), int(all_))

    def of(self, items: Iterable[Item]) -> Iterator[Item]:
        return islice(items, self.own, None, self.all)


def spread(results: Results, part: str, path: Path, end: float, dry: bool) -> None:
    """Run all shares of the part in processes, and merge their results."""
    count = 2 if dry else max(1, min(MOST, os.cpu_count() or 1))
    paths = [path.with_name(f"{path.stem}.{own}.json") for own in range(count)]
    for each in paths:
        each.unlink(missing_ok=True)
    # The processes stay in this process's session, so that they are killed with it.
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.parts", part, str(each), str(end)]
            + ["--share", f"{own}/{count}"]
            + ["--dry"] * dry
        )
        for own, each in enumerate(paths)
    ]
    try:
        for own, process in enumerate(started):
            _wait(results, f"share {own} of {count}", process, end)
    finally:
        for process in started:
            process.kill()
    for each in paths:
        if each.exists():
            results.take_in(json.loads(each.read_text()))


def _wait(results: Results, name: str, process: subprocess.Popen[bytes], end: float) -> None:
    try:
        # End a second early, to merge the results.
        status = process.wait(max(0.1, end - 1 - time.monotonic()))
    except subprocess.TimeoutExpired:
        results.fail(name, "did not end in time")
        return
    if status:
        results.fail(name, f"ended with {status}; see the log")
