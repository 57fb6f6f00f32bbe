"""Seconds of a call on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Compiler:
    """Seconds that Triton compiles what its cache on the disk does not have: the first start of a
    model on a machine, and no later one. Those of several threads are added.
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
    """On a GPU, or on the CPU where the run is dry."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.device = "cpu" if dry else "cuda"
        self.dtype = torch.float32 if dry else torch.bfloat16

    @property
    def cached(self) -> int:
        """Bytes that the GPU may still have in its cache when a call begins again: twice the cache,
        as part of what is read stays.
        """
        if self.dry:
            return 0
        return 2 * int(torch.cuda.get_device_properties(0).L2_cache_size)

    def wait(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def of(self, call: Callable[[], object], calls: int = 10, repeats: int = 5) -> float:
        """The least of `repeats` means over `calls` replays of a graph, so that a launch by Python
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
