"""RMS norm and layer norm, fused with the residual addition before them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels.language import jit, launches, power, tl

After = tuple[Tensor, float]
"""Weight and epsilon of an RMS norm that is applied to the residual before it is added."""


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    after: After | None = None,
) -> tuple[Tensor, Tensor]:
    """The norm of `x + residual`, and the sum `x + residual` itself: both [rows, width] in the type
    of `x` [rows, width], whose rows may be strided.

    `weight` [width] is f32 or has the type of `x`. The sum is rounded before the norm, so that
    results are the same with and without the fused addition. `after` normalises the residual, and
    rounds it, before the addition.
    """
    compute = rms_norm_triton if launches(x) else rms_norm_reference
    return compute(x, weight, eps, residual=residual, after=after)


def rms_norm_reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    after: After | None = None,
) -> tuple[Tensor, Tensor]:
    if residual is not None:
        if after is not None:
            residual = _rms(residual, *after)
        x = (x.float() + residual.float()).to(x.dtype)
    return _rms(x, weight, eps), x


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * root * weight.float()).to(x.dtype)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Like `rms_norm`, but subtracts the mean; `bias` [width] is added."""
    compute = layer_norm_triton if launches(x) else layer_norm_reference
    return compute(x, weight, bias, eps, residual=residual)


def layer_norm_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    total = x if residual is None else x + residual
    normed = functional.layer_norm(total.float(), (x.shape[1],), weight, bias, eps)
    return normed.to(x.dtype), total


def rms_norm_triton(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    after: After | None = None,
) -> tuple[Tensor, Tensor]:
    return _launch(x, weight, None, eps, residual, after, centred=False)


def layer_norm_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return _launch(x, weight, bias, eps, residual, None, centred=True)


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    after: After | None,
    *,
    centred: bool,
) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    normed = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    other = x if residual is None else residual
    after_weight, after_eps = (weight, 0.0) if after is None else after
    if rows:
        block = power(width)
        _norm[(rows,)](
            *(x, other, weight, weight if bias is None else bias, after_weight, normed, total),
            *(x.stride(0), other.stride(0), width, eps, after_eps),
            SUM=residual is not None,
            AFTER=residual is not None and after is not None,
            CENTRED=centred,
            BIAS=bias is not None,
            BLOCK=block,
            num_warps=min(16, max(1, block // 512)),
        )
    return normed, total


@jit
def _norm(
    x,
    residual,
    weight,
    bias,
    after,
    normed,
    total,
    stride,
    residual_stride,
    width,
    eps,
    after_eps,
    SUM: tl.constexpr,
    AFTER: tl.constexpr,
    CENTRED: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    own = at < width
    value = tl.load(x + row * stride + at, mask=own, other=0.0)
    factor = tl.load(weight + at, mask=own, other=0.0).to(tl.float32)
    if SUM:
        other = tl.load(residual + row * residual_stride + at, mask=own, other=0.0).to(tl.float32)
        if AFTER:
            root = tl.rsqrt(tl.sum(other * other, 0) / width + after_eps)
            scaled = other * root * tl.load(after + at, mask=own, other=0.0).to(tl.float32)
            other = scaled.to(value.dtype).to(tl.float32)
        value = (value.to(tl.float32) + other).to(value.dtype)
        tl.store(total + row * width + at, value, mask=own)
    wide = value.to(tl.float32)
    if CENTRED:
        wide = tl.where(own, wide - tl.sum(wide, 0) / width, 0.0)
    root = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    wide = wide * root * factor
    if BIAS:
        wide += tl.load(bias + at, mask=own, other=0.0).to(tl.float32)
    tl.store(normed + row * width + at, wide.to(value.dtype), mask=own)
