"""Grouped products: multiplies each row by the matrix of its expert. The matrix is read in its
stored form (quantised or plain).

The rows of an expert are contiguous in the order of `sort_by_expert`. The grid has the maximum
number of row tiles, because the end of each expert's rows is known only on the device. A program
finds its expert from these ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.kernels.codes import of_bits, of_words, on_device
from penstock.backends.torch.kernels.language import (
    capability,
    ceiling,
    hopper,
    jit,
    jit_with_varying,
    power,
    tl,
)
from penstock.backends.torch.kernels.matrix import BLOCK, Matrix
from penstock.backends.torch.kernels.widen import pieces, widen_triton


def grouped_product(
    x: Tensor,
    matrix: Matrix,
    ends: Tensor,
    *,
    order: Tensor | None = None,
    each: int = 1,
    factors: Tensor | None = None,
    on_input: bool = False,
    scratch: Tensor | None = None,
) -> Tensor:
    """For each place i: the product of row `order[i] // each` of `x` with the matrix of the place's
    expert, times `factors[order[i]]`. It becomes row `order[i]` of the result [places, outputs].
    The places of expert e are `ends[e - 1]` (0 for the first expert) to `ends[e]`, exclusive.
    `on_input`: the factor multiplies the input and not the bias. Rows of places beyond the last end
    are uninitialised.

    `order` None: 0, 1, ... The products are f32 sums, rounded to the type of `x`. `scratch`: memory
    of that type into which codes are widened first, for as many experts at a time as fit.
    """
    count, outputs, _ = matrix.shape
    places = len(x) if order is None else len(order)
    out = torch.empty(places, outputs, dtype=x.dtype, device=x.device)
    given = _Product(x, ends, order, each, factors, on_input, out)
    if places and (scratch is None or matrix.form == "plain"):
        _launch(given, matrix, range(count))
    elif places and scratch is not None:
        for part in pieces(matrix, scratch):
            wide = widen_triton(matrix, part, scratch)
            _launch(given, Matrix(wide, bias=matrix.bias), part)
    return out


@dataclass(frozen=True, slots=True)
class _Product:
    x: Tensor
    ends: Tensor
    order: Tensor | None
    each: int
    factors: Tensor | None
    on_input: bool
    out: Tensor


def _launch(given: _Product, matrix: Matrix, part: range) -> None:
    """Launch the kernel for the rows of the experts in `part`. `matrix` has the codes of these
    experts only, but the biases of all experts.
    """
    x, ends, order, factors, out = given.x, given.ends, given.order, given.factors, given.out
    experts, places = len(ends), len(out)
    _, outputs, inputs = matrix.shape
    sizes = grouped_sizes(places, experts, matrix.form, x.element_size())
    # One tile per full tile of rows, and at most one partial tile per expert.
    tiles = ceiling(places, sizes["BLOCK_M"]) + min(len(part), places)
    codes, scales = on_device(matrix, x.device), matrix.scales
    steps = (0, 0, 0) if scales is None else (*scales.stride(), 1)[:3]
    _grouped[(ceiling(outputs, sizes["BLOCK_N"]), tiles)](
        *(x, codes, codes if scales is None else scales),
        *(x if matrix.bias is None else matrix.bias, ends),
        *(ends if order is None else order, x if factors is None else factors, out),
        *(part.start, part.stop),
        *(x.stride(0), *codes.stride()[:2], *steps[:2]),
        *(outputs, inputs, given.each),
        FORM=matrix.form,
        NATIVE=codes.is_floating_point(),
        BY_F32=not narrows(x),
        ORDERED=order is not None,
        BIAS=matrix.bias is not None,
        FACTORS="" if factors is None else "input" if given.on_input else "output",
        BLOCK_E=power(experts, 16),
        **sizes,
        **registers(x, matrix.form, sizes["BLOCK_M"]),
    )


def narrows(x: Tensor) -> bool:
    """Whether the device converts FP8 to bfloat16 fast. Compute capability 9.0 has an instruction
    for it, but at a quarter of the rate, so a conversion through f32 is faster.
    """
    return x.device.type != "cpu" and capability(x.device) >= (10, 0)


WIDEST = 128
"""Maximum rows of `x` in a tile."""


def widest_tile(places: int, experts: int) -> bool:
    """True if the rows of the average expert fill more than half of the widest tile."""
    return ceiling(places, experts) > WIDEST // 2


def grouped_sizes(places: int, experts: int, form: str, size: int) -> dict[str, int]:
    """Tile sizes of a program, by the average number of rows per expert. `size`: bytes per element
    of `x`.
    """
    average = ceiling(places, experts)
    if form == "mxfp4" and size == 2:
        # Use 1.5 times the average. A second tile of an expert would decode all its codes again,
        # while an additional row costs little.
        rows = power(min(average + average // 2, WIDEST), 16)
        return {"BLOCK_M": rows, **_MXFP4_SIZES[max(rows, 32)], "num_stages": 3}
    rows = power(min(average, WIDEST), 16)
    wide = rows >= 64
    inputs = 64 if size == 2 else 32
    if form == "fp8_block" or (form == "mxfp4" and not wide):
        inputs = BLOCK
    return {
        "BLOCK_M": rows,
        "BLOCK_N": 128 if wide and form == "plain" else 64,
        "BLOCK_K": inputs,
        "num_warps": 8 if wide else 4,
        "num_stages": 3,
    }


_MXFP4_SIZES = {
    32: {"BLOCK_N": 64, "BLOCK_K": 256, "num_warps": 4},
    64: {"BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4},
    128: {"BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8},
}
"""Tile sizes by the rows of a tile. Small tiles are bound by reading codes, 8 KiB per tile; large
ones by the L2 cache, from which a wide tile reads the same rows half as often."""


def registers(x: Tensor, form: str, rows: int) -> dict[str, int]:
    """Register limit per thread with which two programs fit on a multiprocessor of compute
    capability 9.x: one dequantises while the other multiplies. Registers are spilled only outside
    the loop.
    """
    wide = form == "mxfp4" and rows == WIDEST and x.element_size() == 2
    return {"maxnreg": 128} if wide and hopper(x.device) else {}


@jit
def _own_rows(ends, tile, first, last, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr):
    """Expert of a tile, between `first` and `last` (exclusive), its first place, and the end of the
    expert's places. For a tile beyond the last one, the expert is `last` or higher.
    """
    e = tl.arange(0, BLOCK_E)
    own = (e >= first) & (e < last)
    end = tl.load(ends + e, mask=own, other=0)
    begin = tl.load(ends + e - 1, mask=own & (e > 0), other=0)
    tiles = tl.where(own, (end - begin + BLOCK_M - 1) // BLOCK_M, 0)
    until = tl.cumsum(tiles, 0)
    expert = tl.sum((until <= tile).to(tl.int32), 0)
    mine = e == expert
    place = tl.sum(tl.where(mine, begin + (tile - until + tiles) * BLOCK_M, 0), 0)
    return expert, place, tl.sum(tl.where(mine, end, 0), 0)


@jit_with_varying("first", "last")
def _grouped(
    x,
    codes,
    scales,
    bias,
    ends,
    order,
    factors,
    out,
    first,
    last,
    stride_x,
    stride_expert,
    stride_output,
    stride_se,
    stride_so,
    outputs,
    inputs,
    each,
    FORM: tl.constexpr,
    NATIVE: tl.constexpr,
    BY_F32: tl.constexpr,
    ORDERED: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    expert, begin, end = _own_rows(ends, tl.program_id(1), first, last, BLOCK_E, BLOCK_M)
    if expert < last:
        m = begin + tl.arange(0, BLOCK_M)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        own, column = m < end, n < outputs
        place = m
        if ORDERED:
            place = tl.load(order + m, mask=own, other=0)
        row = x + (place // each).to(tl.int64)[:, None] * stride_x
        matrix = codes + (expert - first).to(tl.int64) * stride_expert
        scale = scales + (expert - first).to(tl.int64) * stride_se
        dtype: tl.constexpr = x.dtype.element_ty
        # MXFP4 codes are the first operand of the product, which can stay in registers. The
        # dequantised numbers therefore bypass shared memory.
        if FORM == "mxfp4":
            acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        else:
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for at in range(0, inputs, BLOCK_K):
            j = at + tl.arange(0, BLOCK_K)
            here = own[:, None] & (j < inputs)[None, :]
            numbers = tl.load(row + j[None, :], mask=here, other=0.0)
            if FORM == "mxfp4":
                i = at // 8 + tl.arange(0, BLOCK_K // 8)
                known = column[:, None] & (i < inputs // 8)[None, :]
                start = n.to(tl.int64)[:, None] * stride_output
                words = tl.load(matrix + start + i[None, :], mask=known, other=0)
                g = at // 32 + tl.arange(0, BLOCK_K // 32)
                known = column[:, None] & (g < inputs // 32)[None, :]
                to = scale + n[:, None] * stride_so + g[None, :]
                exponents = tl.load(to, mask=known, other=0)
                weight = of_words(words.to(tl.uint32, bitcast=True), exponents, dtype)
                acc = tl.dot(weight, tl.trans(numbers), acc, input_precision="ieee")
            else:
                known = column[None, :] & (j < inputs)[:, None]
                code = tl.load(
                    matrix + n.to(tl.int64)[None, :] * stride_output + j[:, None],
                    mask=known,
                    other=0.0 if NATIVE else 0,
                )
                if FORM == "fp8_block":
                    if not NATIVE:
                        weight = of_bits(code, dtype)
                    elif BY_F32:
                        weight = code.to(tl.float32).to(dtype)
                    else:
                        weight = code.to(dtype)
                    block = tl.load(
                        scale + n // 128 * stride_so + at // 128, mask=column, other=0.0
                    )
                    product = tl.dot(numbers, weight, input_precision="ieee")
                    acc += product * block[None, :]
                else:
                    acc = tl.dot(numbers, code.to(dtype), acc, input_precision="ieee")
        if FORM == "mxfp4":
            acc = tl.trans(acc)
        if FACTORS != "":
            factor = tl.load(factors + place, mask=own, other=0.0).to(tl.float32)
        if FACTORS == "input":
            acc *= factor[:, None]
        if BIAS:
            added = tl.load(bias + expert * outputs + n, mask=column, other=0.0)
            acc += added.to(tl.float32)[None, :]
        if FACTORS == "output":
            acc *= factor[:, None]
        to = out + place.to(tl.int64)[:, None] * outputs + n[None, :]
        tl.store(to, acc.to(dtype), mask=own[:, None] & column[None, :])
