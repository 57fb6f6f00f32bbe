"""Time of a call on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Compiler:
    """Seconds that Triton spends on kernels that are not in its disk cache: only the first start of
    a model on a machine has any. The times of several threads are added.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        try:
            from triton import knobs
        except ModuleNotFoundError:
            return
        knobs.compilation.listener = self.compiled

    def compiled(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        self.seconds += 0.0 if cache_hit else times.total / 1e6


class Timing:
    """Timing on a GPU, or on the CPU in a dry run."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.dtype = torch.float32 if dry else torch.bfloat16

    @property
    def cached(self) -> int:
        """Bytes that the GPU may still have in its cache when a call starts again: twice the cache
        size, because part of the data stays.
        """
        if self.dry:
            return 0
        return 2 * int(torch.cuda.get_device_properties(0).L2_cache_size)

    def wait(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def of(self, call: Callable[[], object], calls: int = 10, repeats: int = 5) -> float:
        """The minimum of `repeats` means over `calls` graph replays, so that Python's launch time
        does not count.
        """
        call()
        self.wait()
        if self.dry:
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return min(self._replayed(graph) for _ in range(repeats)) / calls

    def _replayed(self, graph: torch.cuda.CUDAGraph) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3
