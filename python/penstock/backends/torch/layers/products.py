"""Matrix products with weights: by torch, or by the kernels for few rows (`kernels/skinny.py`)
where `startup/tuning.py` measured those to be faster on this device.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels import Activation, Matrix, activate, linear
from penstock.backends.torch.kernels.skinny import BUCKETS, MOST_ROWS, Tiling, fits, skinny_product

FASTER: dict[tuple[object, ...], Any] = {}
"""Measured products, by `product_key` or `mixture_key`, each with the kernel to use: a Tiling, or
True for the mixture kernels; None for torch's. Must not change after start-up, so that outputs stay
bitwise the same."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Product of rows [rows, inputs] with `weight` [outputs, inputs]: [rows, outputs]."""
    tiling = _tiling(x, weight, bias, gated=False)
    if tiling is None:
        return functional.linear(x, weight, bias)
    return skinny_product(x, weight, bias, tiling=tiling)


def matrix_product(x: Tensor, matrix: Matrix) -> Tensor:
    """Like `product`, with a matrix that may be quantised."""
    return product(x, matrix.codes, matrix.bias) if matrix.form == "plain" else linear(x, matrix)


def gated_product(x: Tensor, matrix: Matrix, activation: Activation) -> Tensor:
    """Product of rows with a fused gate and up matrix, then the gated activation: [rows, outputs /
    2].
    """
    plain = matrix.form == "plain"
    tiling = _tiling(x, matrix.codes, matrix.bias, gated=True) if plain else None
    if tiling is None:
        return activate(linear(x, matrix), activation)
    return skinny_product(x, matrix.codes, matrix.bias, activation, tiling)


def product_key(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, gated: bool
) -> tuple[object, ...]:
    return (x.device, x.dtype, *weight.shape, bias is None, gated, bucket(len(x)))


def mixture_key(
    x: Tensor, router: Tensor, gate_up: Matrix, down: Matrix, chosen: int
) -> tuple[object, ...]:
    shapes = (*router.shape, *gate_up.codes.shape, *down.codes.shape)
    return (x.device, x.dtype, gate_up.form, *shapes, chosen, bucket(len(x)))


def bucket(rows: int) -> int:
    """The measured row count that applies to `rows` (at most `MOST_ROWS`): the smallest entry of
    BUCKETS that is at least `rows`.
    """
    return next(each for each in BUCKETS if each >= rows)


def _tiling(x: Tensor, weight: Tensor, bias: Tensor | None, *, gated: bool) -> Tiling | None:
    if not FASTER or not 0 < len(x) <= MOST_ROWS or not fits(x, weight):
        return None
    found: Tiling | None = FASTER.get(product_key(x, weight, bias, gated=gated))
    return found
