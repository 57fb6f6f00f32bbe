"""A mixture of experts for few rows. After the router (`router.py`), one kernel computes gate and
up of the selected experts, and another one the weighted sum of their outputs.

Each choice of a row reads its expert's matrices independently, as `skinny.py` reads a matrix: rows
are neither sorted by expert nor copied. If two rows select the same expert, the second read hits
the GPU's cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.activation import (
    Activation,
    activate_reference,
    activated,
)
from penstock.backends.torch.kernels.codes import on_device
from penstock.backends.torch.kernels.gather import Beside, combine_reference
from penstock.backends.torch.kernels.grouped import narrows
from penstock.backends.torch.kernels.language import ceiling, jit, launches, tl
from penstock.backends.torch.kernels.matrix import Matrix
from penstock.backends.torch.kernels.skinny import (
    COUNTERS,
    MOST_ROWS,
    PADDED_ROWS,
    STAGES,
    WIDE,
    Tiling,
    column_sums,
    counters,
    first_column,
    gate_and_up,
)

MOST_PLACES = 64
"""Maximum number of choices (rows times experts per row). Each choice reads its expert's
matrices.
"""
_TILINGS = {"plain": WIDE, "fp8_block": Tiling(32, 4, 128), "mxfp4": Tiling(32, 4, 128)}


def takes(x: Tensor, router: Tensor, gate_up: Matrix, down: Matrix, chosen: int) -> bool:
    """True if the kernels support these operands: few rows of 16-bit floats, and matrices that can
    be copied 16 bytes at a time.
    """
    few = len(x) <= MOST_ROWS and len(x) * chosen <= MOST_PLACES
    if not launches(x) or not few or x.itemsize != 2:
        return False
    aligned = all(
        each.is_contiguous() and each.shape[-1] % 16 == 0
        for each in (router, gate_up.codes, down.codes)
    )
    forms = gate_up.form == down.form and x.dtype == router.dtype
    plain = gate_up.form != "plain" or gate_up.codes.dtype == down.codes.dtype == x.dtype
    return aligned and forms and plain and len(x) * ceiling(x.shape[1], 32) <= COUNTERS


def inner_rows(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    activation: Activation,
    *,
    weight_on_input: bool = False,
) -> Tensor:
    """Activated gate and up for each choice of each row: [rows * k, width]. Entries for experts
    beyond the last matrix, which other ranks hold, are uninitialised.
    """
    compute = inner_rows_triton if launches(x) else inner_rows_reference
    return compute(x, indices, weights, gate_up, activation, weight_on_input=weight_on_input)


def inner_rows_reference(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    activation: Activation,
    *,
    weight_on_input: bool = False,
) -> Tensor:
    chosen = indices.flatten().long().clamp(max=len(gate_up.codes) - 1)
    inputs = x.float().repeat_interleave(indices.shape[1], 0)
    if weight_on_input:
        inputs = inputs * weights.flatten().unsqueeze(1)
    sums = (gate_up.dense().float()[chosen] @ inputs.unsqueeze(2)).squeeze(2)
    if gate_up.bias is not None:
        sums = sums + gate_up.bias.float()[chosen]
    return activate_reference(sums, activation).to(x.dtype)


def output_rows(
    inner: Tensor,
    indices: Tensor,
    weights: Tensor,
    down: Matrix,
    *,
    weight_on_input: bool = False,
    beside: Beside | None = None,
) -> Tensor:
    """Weighted sum of the outputs of each row's choices, in order: [rows, hidden]. `inner` [rows *
    k, width] is the result of `inner_rows`. `beside` is added.
    """
    compute = output_rows_triton if launches(inner) else output_rows_reference
    given = (inner, indices, weights, down)
    return compute(*given, weight_on_input=weight_on_input, beside=beside)


def output_rows_reference(
    inner: Tensor,
    indices: Tensor,
    weights: Tensor,
    down: Matrix,
    *,
    weight_on_input: bool = False,
    beside: Beside | None = None,
) -> Tensor:
    count = len(down.codes)
    chosen = indices.flatten().long().clamp(max=count - 1)
    outputs = (down.dense().float()[chosen] @ inner.float().unsqueeze(2)).squeeze(2)
    options = {"factors": None if weight_on_input else weights, "bias": down.bias}
    return combine_reference(outputs, indices, count, **options, beside=beside).to(inner.dtype)


def inner_rows_triton(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    activation: Activation,
    *,
    weight_on_input: bool = False,
) -> Tensor:
    places, width = indices.numel(), gate_up.codes.shape[1] // 2
    out = torch.empty(places, width, dtype=x.dtype, device=x.device)
    tiling = _TILINGS[gate_up.form]
    block = tiling.outputs // 2
    if places == 0:
        return out
    bias = gate_up.bias
    _inner_rows[(ceiling(width, block), places)](
        *(x, *_stored(gate_up, x), out if bias is None else bias, indices, weights, out),
        *(x.stride(0), *_strides(gate_up, x), width, x.shape[1], indices.shape[1]),
        *(activation.limit, activation.alpha, activation.offset),
        EXPERTS=len(gate_up.codes),
        KIND=activation.kind,
        BIAS=bias is not None,
        ON_INPUT=weight_on_input,
        **_constants(gate_up, x, tiling),
        BLOCK_N=block,
        num_warps=tiling.parts,
    )
    return out


def output_rows_triton(
    inner: Tensor,
    indices: Tensor,
    weights: Tensor,
    down: Matrix,
    *,
    weight_on_input: bool = False,
    beside: Beside | None = None,
) -> Tensor:
    (rows, k), hidden, device = indices.shape, down.codes.shape[1], inner.device
    out = torch.empty(rows, hidden, dtype=inner.dtype, device=device)
    parts = torch.empty(rows * k, hidden, dtype=torch.float32, device=device)
    tiling, bias = _TILINGS[down.form], down.bias
    gate = None if beside is None else beside.gate
    if rows == 0:
        return out
    _output_rows[(ceiling(hidden, tiling.outputs), k, rows)](
        *(inner, *_stored(down, inner), out if bias is None else bias, indices, weights),
        *(parts, out if beside is None else beside.rows, out if gate is None else gate, out),
        *(counters(device), inner.stride(0), *_strides(down, inner), hidden, inner.shape[1]),
        0 if gate is None else gate.stride(0),
        EXPERTS=len(down.codes),
        K=k,
        BIAS=bias is not None,
        FACTORS=not weight_on_input,
        BESIDE=beside is not None,
        GATE=gate is not None,
        **_constants(down, inner, tiling),
        BLOCK_N=tiling.outputs,
        num_warps=tiling.parts,
    )
    return out


def _stored(matrix: Matrix, x: Tensor) -> tuple[Tensor, Tensor]:
    codes = on_device(matrix, x.device)
    return codes, codes if matrix.scales is None else matrix.scales


def _strides(matrix: Matrix, x: Tensor) -> tuple[int, ...]:
    """Strides of codes by expert and row, then of scales by expert and row."""
    scales = (0, 0) if matrix.scales is None else matrix.scales.stride()[:2]
    return (*on_device(matrix, x.device).stride()[:2], *scales)


def _constants(matrix: Matrix, x: Tensor, tiling: Tiling) -> dict[str, object]:
    codes, _ = _stored(matrix, x)
    return {
        "FORM": matrix.form,
        "NATIVE": codes.is_floating_point(),
        "BY_F32": not narrows(x),
        "ROWS": PADDED_ROWS,
        "BLOCK_K": tiling.inputs,
        "PARTS": tiling.parts,
        "STAGES": STAGES,
    }


@jit
def _inner_rows(
    x,
    codes,
    scales,
    bias,
    indices,
    weights,
    out,
    stride_x,
    stride_expert,
    stride_output,
    stride_se,
    stride_so,
    width,
    inputs,
    each,
    limit,
    alpha,
    offset,
    EXPERTS: tl.constexpr,
    KIND: tl.constexpr,
    BIAS: tl.constexpr,
    ON_INPUT: tl.constexpr,
    FORM: tl.constexpr,
    NATIVE: tl.constexpr,
    BY_F32: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    place = tl.program_id(1)
    expert = tl.load(indices + place).to(tl.int64)
    if expert < EXPERTS:
        # The first half of a tile's rows belongs to gate, the second half to the same rows of up.
        m = tl.arange(0, 2 * BLOCK_N)
        column = tl.program_id(0) * BLOCK_N + m % BLOCK_N
        row, known = m // BLOCK_N * width + column, column < width
        sums = column_sums(
            x + (place // each).to(tl.int64) * stride_x,
            0,
            1,
            codes + expert * stride_expert,
            scales + expert * stride_se,
            row,
            known,
            stride_output,
            stride_so,
            0,
            inputs,
            FORM,
            NATIVE,
            BY_F32,
            ROWS,
            2 * BLOCK_N,
            BLOCK_K,
            PARTS,
            STAGES,
        )
        if ON_INPUT:
            sums *= tl.load(weights + place)
        if BIAS:
            added = tl.load(bias + expert * 2 * width + row, mask=known, other=0.0)
            sums += added.to(tl.float32)[:, None]
        gate, up = gate_and_up(sums, BLOCK_N, ROWS)
        made = activated(gate, up, limit, alpha, offset, KIND)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        to = out + place.to(tl.int64) * width + n
        tl.store(to, first_column(made, ROWS).to(out.dtype.element_ty), mask=n < width)


@jit
def _output_rows(
    inner,
    codes,
    scales,
    bias,
    indices,
    weights,
    parts,
    beside,
    gate,
    out,
    counts,
    stride_x,
    stride_expert,
    stride_output,
    stride_se,
    stride_so,
    hidden,
    inputs,
    stride_gate,
    EXPERTS: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    BESIDE: tl.constexpr,
    GATE: tl.constexpr,
    FORM: tl.constexpr,
    NATIVE: tl.constexpr,
    BY_F32: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Outputs of each choice's expert. Among the programs of a row's choices, the last to finish
    adds the outputs.
    """
    row = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = n < hidden
    place = row * K + tl.program_id(1)
    expert = tl.load(indices + place).to(tl.int64)
    if expert < EXPERTS:
        sums = column_sums(
            inner + place * stride_x,
            0,
            1,
            codes + expert * stride_expert,
            scales + expert * stride_se,
            n,
            known,
            stride_output,
            stride_so,
            0,
            inputs,
            FORM,
            NATIVE,
            BY_F32,
            ROWS,
            BLOCK_N,
            BLOCK_K,
            PARTS,
            STAGES,
        )
        tl.store(parts + place * hidden + n, first_column(sums, ROWS), mask=known)
    # All stores of the program must be done before it increments the counter.
    tl.debug_barrier()
    counter = counts + row * tl.num_programs(0) + tl.program_id(0)
    if tl.atomic_add(counter, 1) == K - 1:
        total = tl.zeros([BLOCK_N], tl.float32)
        for j in tl.static_range(K):
            choice = row * K + j
            chosen = tl.load(indices + choice).to(tl.int64)
            # One mask over the block, because Triton's interpreter cannot combine a scalar and a
            # block condition.
            here = n < tl.where(chosen < EXPERTS, hidden, 0)
            # Bypass the L1 cache, because other programs wrote these values.
            to = parts + choice * hidden + n
            value = tl.load(to, mask=here, other=0.0, cache_modifier=".cg")
            if BIAS:
                added = tl.load(bias + chosen * hidden + n, mask=here, other=0.0)
                value += added.to(tl.float32)
            if FACTORS:
                value *= tl.load(weights + choice)
            total += value
        if BESIDE:
            value = tl.load(beside + row * hidden + n, mask=known, other=0.0).to(tl.float32)
            if GATE:
                value *= 1.0 / (1.0 + tl.exp(-tl.load(gate + row * stride_gate)))
            total += value
        tl.store(out + row * hidden + n, total.to(out.dtype.element_ty), mask=known)
        tl.store(counter, 0)
