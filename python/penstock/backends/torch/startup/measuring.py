"""Measures how much GPU memory is free for KV pools once the largest steps and graphs have run.

torch keeps the memory of these steps for later ones, and the driver keeps the memory of kernels and
libraries. Only graphs captured later are estimated (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.startup.memory import MARGIN, graph_bytes
from penstock.backends.torch.step.captures import Captures
from penstock.backends.torch.step.device import Device


@dataclass(frozen=True, slots=True)
class MemoryMeasurement:
    """Memory of a GPU by use, in bytes."""

    steps: int
    graphs: int
    """Memory of all graphs, including an estimate for those that are captured later."""
    free: int
    largest: list[Callable[[], Tensor]]
    """Replay functions of the largest graphs, which own the memory pool that all graphs share. The
    references keep the graphs alive.
    """

    def describe(self, tokens: int) -> str:
        steps, graphs, free = (size >> 20 for size in (self.steps, self.graphs, self.free))
        return f"{steps} MiB for {tokens} tokens, {graphs} for graphs, {free} free"


def measure(
    device: Device, warm_up: Callable[[], None], captures: Captures | None, beside: int
) -> MemoryMeasurement:
    """Run the steps of `warm_up`, and capture the largest graph of each kind. `beside`: bytes that
    all graphs need outside the shared pool. Raises torch.OutOfMemoryError if a step or a graph does
    not fit.
    """
    device.release()
    before = device.kept_memory()
    warm_up()
    warm, free = device.kept_memory(), device.free_memory()
    largest: list[Callable[[], Tensor]] = []

    def capture(captures: Captures) -> None:
        with torch.inference_mode():
            largest.extend(map(captures.replay, captures.largest()))
            # The driver allocates its part of a graph's memory at the first replay, so replay each
            # graph once.
            for replay in largest:
                replay()

    later = 0
    if captures is not None:
        device.start(lambda: capture(captures)).result()
        pool = device.kept_memory() - warm
        driver = (free - device.free_memory() - pool) // len(largest)
        results = captures.results()
        later = graph_bytes(pool, driver, results) + beside
    kept = device.kept_memory() - warm + later
    left = max(0, device.free_memory() - later - MARGIN)
    return MemoryMeasurement(warm - before, kept, left, largest)
