"""Row count from which quantised experts are widened to bfloat16 before the product, measured at
start-up.

Widening writes all elements of a layer, independent of the number of rows; the bfloat16 product is
then faster than one on codes. The break-even point depends on the device and the rows per expert.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.backends.torch.kernels import Matrix, experts
from penstock.backends.torch.kernels.grouped import widest_tile

if TYPE_CHECKING:
    from penstock.backends.torch.load.weights import MixtureWeights

SCRATCH_BYTES = 256 << 20
"""Experts are widened in batches of this size, or one by one if an expert is larger. The products
of one batch occupy a GPU for several waves."""
CALLS = 2
"""Measurements of each variant; the shortest counts."""

log = logging.getLogger(__name__)


class Widening:
    """Shared by all quantised mixtures of a rank, which run one after another."""

    def __init__(self) -> None:
        self._scratch: Tensor | None = None
        self._rows: int | None = None

    def reserve(self, *matrices: Matrix) -> None:
        """Reserve scratch memory for quantised matrices of bfloat16 models. It is allocated before
        free memory is measured, and CUDA graphs keep its address.
        """
        for matrix in matrices:
            count, outputs, inputs = matrix.shape
            one = outputs * inputs
            most = max(one, min(count * one, SCRATCH_BYTES // torch.bfloat16.itemsize))
            if self._scratch is None or self._scratch.numel() < most:
                device = matrix.codes.device
                self._scratch = torch.empty(most, dtype=torch.bfloat16, device=device)

    def scratch(self, rows: int) -> Tensor | None:
        """Scratch memory for a step of `rows` rows; None: its products read the codes directly."""
        return self._scratch if self._rows is not None and rows >= self._rows else None

    def choose(self, weights: MixtureWeights, most: int) -> None:
        """Measure steps of `most` rows, then half as many, and so on, until widening is no faster.
        All steps with the same number of rows use the same variant, so results are reproducible.
        """
        scratch = self._scratch
        self._rows, tried = None, _tried(weights, most)
        if scratch is None:
            return
        for rows in tried:
            widened = _milliseconds(weights, rows, scratch)
            direct = _milliseconds(weights, rows, None)
            if widened is None or direct is None:
                continue
            log.info("experts of %d rows: %.2f ms from codes, %.2f widened", rows, direct, widened)
            if widened >= direct:
                break
            self._rows = rows
        if self._rows is None and scratch.is_cuda:
            self._scratch = None


def _tried(weights: MixtureWeights, most: int) -> list[int]:
    """Row counts at which the average expert fills the widest tile. Below that, reading the codes
    dominates, not the products.
    """
    halves = [most >> power for power in range(most.bit_length())]
    count = len(weights.own)
    return [rows for rows in halves if widest_tile(rows * weights.chosen, count)]


def _compute(weights: MixtureWeights, rows: int, scratch: Tensor | None) -> Tensor:
    """A step of `rows` rows, spread evenly over the experts of all ranks."""
    inner, device = weights.inner, weights.inner.codes.device
    routed = len(weights.router) - weights.shared_gate
    places = torch.arange(rows * weights.chosen, dtype=torch.int32, device=device)
    indices = places.view(rows, -1).remainder_(routed).clamp_(max=len(weights.own))
    factors = torch.ones(rows, weights.chosen, dtype=torch.float32, device=device)
    x = torch.randn(rows, inner.shape[2], dtype=torch.bfloat16, device=device)
    given = (x, indices, factors, inner, weights.down, weights.activation)
    return experts(*given, weight_on_input=weights.weight_on_input, scratch=scratch)


def _milliseconds(weights: MixtureWeights, rows: int, scratch: Tensor | None) -> float | None:
    """Time on a GPU. None on other devices, where launches are only recorded or tested."""
    _compute(weights, rows, scratch)
    if not weights.router.is_cuda:
        return None
    found = []
    for _ in range(CALLS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        _compute(weights, rows, scratch)
        ended.record()
        ended.synchronize()
        found.append(float(began.elapsed_time(ended)))
    return min(found)
