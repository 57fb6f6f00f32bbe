"""What a GPU has left for KV pools: what is free once the largest steps and the largest graphs have
run. Torch keeps their memory for those to come, and the driver that of kernels and libraries, so
nothing of it has to be known before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.device import Device
from penstock.backends.torch.memory import MARGIN, graph_bytes
from penstock.backends.torch.warm_up import Graphs


@dataclass(frozen=True, slots=True)
class MemoryMeasurement:
    """Bytes of a GPU."""

    steps: int
    graphs: int
    """With those to come."""
    free: int
    largest: list[Callable[[], Tensor]]
    """Graphs that hold the memory which all share: keep them."""

    def describe(self, tokens: int) -> str:
        steps, graphs, free = (size >> 20 for size in (self.steps, self.graphs, self.free))
        return f"{steps} MiB for {tokens} tokens, {graphs} for graphs, {free} free"


def measure(
    device: Device, warm_up: Callable[[], None], graphs: Sequence[Graphs], beside: int
) -> MemoryMeasurement:
    """Run the steps of `warm_up`, and capture the largest of each kind of `graphs`. All graphs take
    `beside` bytes besides what they compute with. Raises torch.OutOfMemoryError.
    """
    device.release()
    before = device.kept_memory()
    warm_up()
    warm, free = device.kept_memory(), device.free_memory()
    largest: list[Callable[[], Tensor]] = []

    def capture() -> None:
        with torch.inference_mode():
            largest.extend(each.capture_largest().replay for each in graphs)
            # The driver takes its part of the memory at the first replay.
            for replay in largest:
                replay()

    later = 0
    if graphs:
        device.start(capture).result()
        pool = device.kept_memory() - warm
        driver = (free - device.free_memory() - pool) // len(graphs)
        results = [size for each in graphs for size in each.results()]
        later = graph_bytes(pool, driver, results) + beside
    kept = device.kept_memory() - warm + later
    left = max(0, device.free_memory() - later - MARGIN)
    return MemoryMeasurement(warm - before, kept, left, largest)
