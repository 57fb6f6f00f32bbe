"""Products with matrices that may be quantised: dense layers, and the experts of a mixture of
experts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels.activation import (
    Activation,
    activate,
    activate_reference,
    activate_triton,
)
from penstock.backends.torch.kernels.gather import (
    Beside,
    add_beside,
    combine,
    combine_triton,
    gather,
)
from penstock.backends.torch.kernels.grouped import grouped_product
from penstock.backends.torch.kernels.language import capability, launches
from penstock.backends.torch.kernels.matrix import Matrix
from penstock.backends.torch.kernels.route import (
    sort_by_expert,
    sort_by_expert_reference,
    sort_by_expert_triton,
)
from penstock.backends.torch.kernels.widen import widen_triton

GROUPED = (9, 10)
"""Major compute capabilities for which torch has a native grouped product. On others torch loops
over the experts and waits for the device, which cannot be captured in a CUDA graph.
"""


WIDENED_ROWS = 512
"""Row count from which a dense quantised matrix is first widened (dequantised to 16 bits). Widening
reads 1 byte and writes 2 bytes per element; the product takes 2 operations per element and row. At
2.4 TB/s, with a bfloat16 product twice as fast as one on codes (807 compared to 266 or 310 TFLOP/s,
all on an H100), the break-even point is 250 to 300 rows.
"""


def linear(x: Tensor, matrix: Matrix) -> Tensor:
    """Product of rows [rows, inputs] with a dense matrix: [rows, outputs] in the type of `x`."""
    if matrix.form == "plain" or not launches(x):
        return linear_reference(x, matrix)
    wide = len(x) >= WIDENED_ROWS and x.dtype == torch.bfloat16
    return (linear_widened if wide else linear_triton)(x, matrix)


def linear_reference(x: Tensor, matrix: Matrix) -> Tensor:
    weight, bias = matrix.dense().to(x.dtype), matrix.bias
    return functional.linear(x, weight, None if bias is None else bias.to(x.dtype))


def linear_wide(x: Tensor, weight: Tensor) -> Tensor:
    """Product in f32 of rows [rows, inputs] with `weight` [outputs, inputs], which is f32 or has
    the type of `x`.
    """
    if weight.dtype == x.dtype != torch.float32 and launches(x):
        # Products of two 16-bit floats are exact in f32, and so are summed in f32.
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return functional.linear(x.float(), weight.float())


def linear_triton(x: Tensor, matrix: Matrix) -> Tensor:
    """Computes the product as a grouped product with a single expert, to which all rows belong."""
    ends = torch.full((1,), len(x), dtype=torch.int32, device=x.device)
    return grouped_product(x, _only(matrix), ends)


def linear_widened(x: Tensor, matrix: Matrix) -> Tensor:
    """The product by torch, after the codes are widened to the type of `x`."""
    only, bias = _only(matrix), matrix.bias
    scratch = torch.empty(math.prod(only.shape), dtype=x.dtype, device=x.device)
    wide = widen_triton(only, range(1), scratch)[0]
    return functional.linear(x, wide, None if bias is None else bias.to(x.dtype))


def _only(matrix: Matrix) -> Matrix:
    scales, bias = matrix.scales, matrix.bias
    return Matrix(
        matrix.codes.unsqueeze(0),
        None if scales is None else scales.unsqueeze(0),
        None if bias is None else bias.unsqueeze(0),
        matrix.form,
    )


def experts(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    down: Matrix,
    activation: Activation,
    *,
    weight_on_input: bool = False,
    beside: Beside | None = None,
    scratch: Tensor | None = None,
) -> Tensor:
    """Weighted sum of the outputs of each row's experts: [rows, hidden] in the type of `x`.

    `x` [rows, hidden]; `indices` [rows, k] int32 and `weights` [rows, k] f32 from `route`;
    `gate_up`: matrices [2 * width, hidden], gate first; `down`: matrices [hidden, width].
    `weight_on_input`: the weight multiplies the expert's input. Indices beyond the last matrix
    stand for experts of other ranks and are skipped. `beside` is added to the sum. `scratch`:
    memory for widening codes before the products, for many rows.
    """
    given = (x, indices, weights, gate_up, down, activation)
    rules: Any = {"weight_on_input": weight_on_input, "beside": beside}
    if not launches(x):
        return experts_reference(*given, **rules)
    if groups(x, gate_up, down):
        return experts_grouped(*given, **rules)
    return experts_triton(*given, **rules, scratch=scratch)


def groups(x: Tensor, gate_up: Matrix, down: Matrix) -> bool:
    """Whether torch's grouped product supports the operands without a wait for the device. Rows
    must be 16-byte aligned.
    """
    plain = gate_up.form == down.form == "plain" and x.dtype == torch.bfloat16
    matrices = (gate_up.codes, down.codes)
    aligned = all(m.shape[-1] * m.itemsize % 16 == 0 == m.data_ptr() % 16 for m in matrices)
    return plain and aligned and has_grouped(x.device)


def has_grouped(device: torch.device) -> bool:
    return capability(device)[0] in GROUPED


def experts_reference(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    down: Matrix,
    activation: Activation,
    *,
    weight_on_input: bool = False,
    beside: Beside | None = None,
) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in indices.unique().tolist():
        if expert == len(gate_up.codes):
            continue
        rows, column = (indices == expert).nonzero(as_tuple=True)
        factor = weights[rows, column].unsqueeze(1)
        inputs = (x[rows].float() * factor).to(x.dtype) if weight_on_input else x[rows]
        inner = linear_reference(inputs, _one(gate_up, expert))
        inner = activate_reference(inner, activation)
        outputs = linear_reference(inner, _one(down, expert)).float()
        out.index_add_(0, rows, outputs if weight_on_input else outputs * factor)
    return add_beside(out, beside).to(x.dtype)


def _one(matrix: Matrix, expert: int) -> Matrix:
    scales, bias = matrix.scales, matrix.bias
    return Matrix(
        matrix.codes[expert],
        None if scales is None else scales[expert],
        None if bias is None else bias[expert],
        matrix.form,
    )


def experts_grouped(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    down: Matrix,
    activation: Activation,
    *,
    weight_on_input: bool = False,
    beside: Beside | None = None,
) -> Tensor:
    """The mixture by torch's grouped product, for plain matrices. Rows beyond the last end are not
    computed and are uninitialised.
    """
    count = len(gate_up.codes)
    order, ends, inverse = sort_by_expert(indices, count)
    on_input = weights.flatten() if weight_on_input else None
    inputs = gather(x, order, indices.shape[1], on_input)
    inner = functional.grouped_mm(inputs, gate_up.codes.transpose(1, 2), offs=ends)
    del inputs
    if gate_up.bias is not None:
        chosen = indices.flatten().index_select(0, order).clamp_(max=count - 1)
        inner += gate_up.bias.index_select(0, chosen)
    inner = activate(inner, activation)
    outputs = functional.grouped_mm(inner, down.codes.transpose(1, 2), offs=ends)
    del inner
    return combine(
        outputs,
        indices,
        count,
        inverse=inverse,
        factors=None if weight_on_input else weights,
        bias=down.bias,
        beside=beside,
    )


def experts_triton(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    down: Matrix,
    activation: Activation,
    *,
    weight_on_input: bool = False,
    beside: Beside | None = None,
    scratch: Tensor | None = None,
) -> Tensor:
    """The mixture by the kernel that reads quantised matrices directly or, with `scratch`, after
    they are dequantised into it.
    """
    count, factors = len(gate_up.codes), weights.flatten()
    small = indices.numel() <= 8192
    order, ends, _ = (sort_by_expert_triton if small else sort_by_expert_reference)(indices, count)
    inner = grouped_product(
        x,
        gate_up,
        ends,
        order=order,
        each=indices.shape[1],
        factors=factors if weight_on_input else None,
        on_input=True,
        scratch=scratch,
    )
    inner = activate_triton(inner, activation)
    outputs = grouped_product(
        inner,
        down,
        ends,
        order=order,
        factors=None if weight_on_input else factors,
        scratch=scratch,
    )
    return combine_triton(outputs, indices, count, beside=beside)
