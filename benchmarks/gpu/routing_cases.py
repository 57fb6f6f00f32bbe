"""Calls of the kernels that run before and after the products of experts: sorting rows, combining
results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.gpu.cases import Case, Maker
from penstock.backends.torch.kernels import Beside, Rule, gather
from penstock.backends.torch.kernels.route import (
    route_reference,
    route_triton,
    sort_by_expert_reference,
    sort_by_expert_triton,
)


def routes(
    make: Maker,
    rows: int,
    experts: int,
    k: int,
    rule: Rule,
    *,
    corrected: bool = False,
    bias: bool = False,
    own: range | None = None,
) -> Case:
    correction = make.wide(experts) * 0.2 if corrected else None
    args = (make.wide(rows, experts), rule, k, correction, make.wide(experts) if bias else None)
    size = rows * experts * 4
    return Case("routing", route_triton, route_reference, (*args, own), bytes=size)


def sorts(make: Maker, rows: int, k: int, experts: int) -> Case:
    """Sorts rows by expert. Experts in the second half get few rows."""
    indices = _indices(make, rows, k, experts)
    pair = (sort_by_expert_triton, sort_by_expert_reference)
    return Case("order by expert", *pair, (indices, experts), bytes=rows * k * 12)


def gathers(make: Maker, rows: int, k: int, hidden: int, *, factors: bool = False) -> Case:
    order, size = _places(make, rows * k), rows * k * hidden * make.dtype.itemsize
    args = (make.numbers(rows, hidden), order, k, make.wide(rows * k) if factors else None)
    pair = (gather.gather_triton, gather.gather_reference)
    return Case("gathered rows", *pair, args, bytes=2 * size)


def combines(
    make: Maker,
    rows: int,
    k: int,
    hidden: int,
    *,
    experts: int = 8,
    sorted_: bool = True,
    bias: bool = False,
    gate: bool | None = None,
) -> Case:
    """Combines the experts' results. Some experts belong to another rank. `gate`: whether the
    shared expert has a gate; None: there is no shared expert.
    """
    beside = None
    if gate is not None:
        beside = Beside(make.numbers(rows, hidden), make.wide(rows, 3)[:, 2] if gate else None)
    options = {
        "inverse": _places(make, rows * k) if sorted_ else None,
        "factors": make.wide(rows, k) if sorted_ else None,
        "bias": make.numbers(experts, hidden) if bias else None,
        "beside": beside,
    }
    outputs, indices = make.numbers(rows * k, hidden), _indices(make, rows, k, experts + 2)
    args = (outputs, indices.clamp(max=experts), experts)
    pair = (gather.combine_triton, gather.combine_reference)
    size = rows * (k + 1) * hidden * make.dtype.itemsize
    return Case("sum of experts", *pair, args, options, bytes=size)


def _indices(make: Maker, rows: int, k: int, experts: int) -> Tensor:
    return torch.minimum(make.integers(0, experts, rows, k), make.integers(0, experts, rows, k))


def _places(make: Maker, count: int) -> Tensor:
    return torch.randperm(count, generator=make.generator, device=make.device).int()
