"""Widening of quantised experts to bfloat16 before the product: its scratch memory, and the number
of rows from which it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels import Matrix

SCRATCH_BYTES = 256 << 20
"""Maximum bytes of the experts that are widened at once; a larger expert is widened alone. The
products of one batch occupy a GPU for several waves."""


class Widening:
    """Scratch memory and threshold that all quantised mixtures of a rank share: they run one after
    another.
    """

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        """Scratch memory in bfloat16. None if no matrix reserved it, or if widening is not
        faster.
        """
        self.least_rows: int | None = None
        """Rows of a step from which its experts are widened, measured at start-up; None: never."""

    def reserve(self, *matrices: Matrix) -> None:
        """Reserve scratch memory for quantised matrices of bfloat16 models. It is allocated before
        free memory is measured, and CUDA graphs keep its address.
        """
        for matrix in matrices:
            count, outputs, inputs = matrix.shape
            one = outputs * inputs
            most = max(one, min(count * one, SCRATCH_BYTES // torch.bfloat16.itemsize))
            if self.memory is None or self.memory.numel() < most:
                device = matrix.codes.device
                self.memory = torch.empty(most, dtype=torch.bfloat16, device=device)

    def scratch(self, rows: int) -> Tensor | None:
        """Scratch memory for a step of `rows` rows; None: its products read the codes directly."""
        return self.memory if self.least_rows is not None and rows >= self.least_rows else None
