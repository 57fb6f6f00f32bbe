"""Permutation of rows for a mixture of experts: gathers the rows in expert order, and combines the
experts' outputs for each row by weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import ceiling, jit, launches, power, tl

_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Beside:
    """The output of a shared expert, which is added to the sum of the selected experts' outputs."""

    rows: Tensor
    """[rows, hidden]"""
    gate: Tensor | None = None
    """[rows] f32: logit of the shared expert's gate; its sigmoid multiplies the rows. None without
    a gate.
    """


def gather(x: Tensor, order: Tensor, each: int, factors: Tensor | None = None) -> Tensor:
    """Gather rows: [places, hidden], where entry i is row `order[i] // each` of `x` [rows, hidden],
    times `factors[order[i]]` (f32) if given.
    """
    compute = gather_triton if launches(x) else gather_reference
    return compute(x, order, each, factors)


def gather_reference(x: Tensor, order: Tensor, each: int, factors: Tensor | None = None) -> Tensor:
    places = order.long()
    rows = x[places // each]
    if factors is None:
        return rows
    return (rows.float() * factors[places].unsqueeze(1)).to(x.dtype)


def combine(
    outputs: Tensor,
    indices: Tensor,
    experts: int,
    *,
    inverse: Tensor | None = None,
    factors: Tensor | None = None,
    bias: Tensor | None = None,
    beside: Beside | None = None,
) -> Tensor:
    """Sum over the choices j of a row of `factors[row, j] * (outputs[place] + bias[expert])`:
    [rows, hidden] in the type of `outputs` [places, hidden].

    The expert is `indices[row, j]`. Experts with index `experts` or above are skipped, regardless
    of their entries in `outputs`. The place of choice j is row * k + j, or the entry of `inverse`
    [rows * k] at that index.
    """
    compute = combine_triton if launches(outputs) else combine_reference
    options = {"inverse": inverse, "factors": factors, "bias": bias, "beside": beside}
    return compute(outputs, indices, experts, **options)


def combine_reference(
    outputs: Tensor,
    indices: Tensor,
    experts: int,
    *,
    inverse: Tensor | None = None,
    factors: Tensor | None = None,
    bias: Tensor | None = None,
    beside: Beside | None = None,
) -> Tensor:
    wide = (outputs if inverse is None else outputs[inverse.long()]).float()
    wide = wide.view(*indices.shape, -1)
    if bias is not None:
        wide = wide + bias[indices.long().clamp(max=experts - 1)].float()
    if factors is not None:
        wide = wide * factors.unsqueeze(2)
    wide = wide.masked_fill((indices >= experts).unsqueeze(2), 0.0)
    return add_beside(wide.sum(1), beside).to(outputs.dtype)


def add_beside(total: Tensor, beside: Beside | None) -> Tensor:
    """`total` in f32, plus the output of the shared expert."""
    if beside is None:
        return total
    rows = beside.rows.float()
    return total + (rows if beside.gate is None else rows * beside.gate.sigmoid().unsqueeze(1))


def gather_triton(x: Tensor, order: Tensor, each: int, factors: Tensor | None = None) -> Tensor:
    places, hidden = len(order), x.shape[1]
    out = torch.empty(places, hidden, dtype=x.dtype, device=x.device)
    if places:
        _gather[(places, ceiling(hidden, _BLOCK))](
            *(x, order, x if factors is None else factors, out, x.stride(0), hidden, each),
            FACTORS=factors is not None,
            BLOCK=min(_BLOCK, power(hidden, 16)),
            num_warps=4,
        )
    return out


@jit
def _gather(
    x, order, factors, out, stride, hidden, each, FACTORS: tl.constexpr, BLOCK: tl.constexpr
):
    own = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(order + own)
    value = tl.load(x + (place // each).to(tl.int64) * stride + at, mask=at < hidden, other=0.0)
    if FACTORS:
        value = (value.to(tl.float32) * tl.load(factors + place)).to(value.dtype)
    tl.store(out + own * hidden + at, value, mask=at < hidden)


def combine_triton(
    outputs: Tensor,
    indices: Tensor,
    experts: int,
    *,
    inverse: Tensor | None = None,
    factors: Tensor | None = None,
    bias: Tensor | None = None,
    beside: Beside | None = None,
) -> Tensor:
    (rows, k), hidden = indices.shape, outputs.shape[1]
    out = torch.empty(rows, hidden, dtype=outputs.dtype, device=outputs.device)
    gate = None if beside is None else beside.gate
    if rows:
        _combine[(rows, ceiling(hidden, _BLOCK))](
            *(outputs, indices, indices if inverse is None else inverse),
            *(outputs if factors is None else factors, outputs if bias is None else bias),
            *(outputs if beside is None else beside.rows, outputs if gate is None else gate, out),
            *(0 if gate is None else gate.stride(0), hidden, experts),
            K=k,
            INVERSE=inverse is not None,
            FACTORS=factors is not None,
            BIAS=bias is not None,
            BESIDE=beside is not None,
            GATE=gate is not None,
            BLOCK=min(_BLOCK, power(hidden, 16)),
            num_warps=4,
        )
    return out


@jit
def _combine(
    outputs,
    indices,
    inverse,
    factors,
    bias,
    beside,
    gate,
    out,
    stride_gate,
    hidden,
    experts,
    K: tl.constexpr,
    INVERSE: tl.constexpr,
    FACTORS: tl.constexpr,
    BIAS: tl.constexpr,
    BESIDE: tl.constexpr,
    GATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(K):
        choice = row * K + j
        expert, place = tl.load(indices + choice), choice
        # One mask over the block, because Triton's interpreter cannot combine a scalar and a block
        # condition.
        known = at < tl.where(expert < experts, hidden, 0)
        if INVERSE:
            place = tl.load(inverse + choice).to(tl.int64)
        value = tl.load(outputs + place * hidden + at, mask=known, other=0.0).to(tl.float32)
        if BIAS:
            of = bias + expert.to(tl.int64) * hidden
            value += tl.load(of + at, mask=known, other=0.0).to(tl.float32)
        if FACTORS:
            value *= tl.load(factors + choice)
        total += value
    if BESIDE:
        value = tl.load(beside + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
        if GATE:
            value *= 1.0 / (1.0 + tl.exp(-tl.load(gate + row * stride_gate)))
        total += value
    tl.store(out + row * hidden + at, total.to(out.dtype.element_ty), mask=inside)
