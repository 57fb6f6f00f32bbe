"""RMS norm, with the sum of the residual stream before it."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import jit, launches, power, tl


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Norm of `x + residual` and that sum, both [rows, width] in the type of `x` [rows, width],
    whose rows may lie apart.

    `weight` [width] is f32, or of the type of `x`. The sum is rounded before its norm, so that
    a layer computes the same with and without the fused sum.
    """
    if launches(x):
        return rms_norm_triton(x, weight, eps, residual=residual)
    return rms_norm_reference(x, weight, eps, residual=residual)


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if residual is not None:
        x = (x.float() + residual.float()).to(x.dtype)
    wide = x.float()
    root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * root * weight.float()).to(x.dtype), x


def rms_norm_triton(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    normed = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    other = x if residual is None else residual
    if rows:
        block = power(width)
        _rms_norm[(rows,)](
            x,
            other,
            weight,
            normed,
            total,
            x.stride(0),
            other.stride(0),
            width,
            eps,
            SUM=residual is not None,
            BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
        )
    return normed, total


@jit
def _rms_norm(
    x,
    residual,
    weight,
    normed,
    total,
    stride,
    residual_stride,
    width,
    eps,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    own = at < width
    value = tl.load(x + row * stride + at, mask=own, other=0.0)
    if SUM:
        other = tl.load(residual + row * residual_stride + at, mask=own, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
        tl.store(total + row * width + at, value, mask=own)
    wide = value.to(tl.float32)
    root = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    factor = tl.load(weight + at, mask=own, other=0.0).to(tl.float32)
    tl.store(normed + row * width + at, (wide * root * factor).to(value.dtype), mask=own)
