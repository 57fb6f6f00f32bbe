"""Measures the time that a call takes on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Compiler:
    """Counts the seconds in which Triton compiles kernels that its disk cache does not have. Only
    the first start of a model on a machine has any. Times of several threads are added.
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
    """Measures times on a GPU, or on the CPU in a dry run."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.dtype = torch.float32 if dry else torch.bfloat16

    @property
    def cached(self) -> int:
        """Bytes of a call's data that the GPU may still have in its cache when the call is
        repeated: twice the size of the cache, because part of larger data stays there.
        """
        if self.dry:
            return 0
        return 2 * int(torch.cuda.get_device_properties(0).L2_cache_size)

    def wait(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def of(self, call: Callable[[], object], calls: int = 10, repeats: int = 5) -> float:
        """Seconds of a call: the minimum over `repeats` of the mean over `calls` calls in a CUDA
        graph, so that Python's time to launch them does not count.
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
