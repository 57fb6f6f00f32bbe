"""Products of rows with the matrices of their experts, read as they are stored.

Rows of an expert lie together in the order of `sort_by_expert`. The grid has as many tiles of rows
as there can be; a program finds its expert from the ends, which the host does not know.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import capability, ceiling, jit, power, tl
from penstock.backends.torch.kernels.matrix import BLOCK, Matrix


def grouped_product(
    x: Tensor,
    matrix: Matrix,
    ends: Tensor,
    *,
    order: Tensor | None = None,
    each: int = 1,
    factors: Tensor | None = None,
    on_input: bool = False,
) -> Tensor:
    """Product of row `order[i] // each` of `x` with the matrix of the expert that `ends` [experts]
    gives place i, times `factors[order[i]]`, as row `order[i]`: [places, outputs]. `on_input`: the
    factor is one of the input, and not of the bias. Rows of places behind the last end are
    anything.

    `order` None: 0, 1, ... The products are f32 sums, rounded to the type of `x`.
    """
    experts, outputs, inputs = len(matrix.codes), matrix.codes.shape[1], x.shape[1]
    places = len(x) if order is None else len(order)
    out = torch.empty(places, outputs, dtype=x.dtype, device=x.device)
    if places == 0:
        return out
    sizes = grouped_sizes(places, experts, matrix.form, x.element_size())
    # A tile for each that is full, and one for each expert that ends in one that is not.
    tiles = ceiling(places, sizes["BLOCK_M"]) + min(experts, places)
    codes, scales = matrix.codes, matrix.codes if matrix.scales is None else matrix.scales
    if matrix.form == "fp8_block":
        codes = _fp8(codes, x)
    steps = (0, 0, 0) if matrix.scales is None else (*matrix.scales.stride(), 1)[:3]
    _grouped[(ceiling(outputs, sizes["BLOCK_N"]), tiles)](
        *(x, codes, scales, x if matrix.bias is None else matrix.bias, ends),
        *(ends if order is None else order, x if factors is None else factors, out),
        *(x.stride(0), *codes.stride()[:2], *steps[:2]),
        *(outputs, inputs, each),
        EXPERTS=experts,
        FORM=matrix.form,
        NATIVE=codes.dtype != torch.uint8,
        BY_F32=not narrows(x),
        ORDERED=order is not None,
        BIAS=matrix.bias is not None,
        FACTORS="" if factors is None else "input" if on_input else "output",
        BLOCK_E=power(experts, 16),
        **sizes,
    )
    return out


def _fp8(codes: Tensor, x: Tensor) -> Tensor:
    """Codes in the form that the device reads: bytes before 8.9, which has no such numbers."""
    native = x.device.type != "cpu" and capability(x.device) >= (8, 9)
    return codes.view(torch.float8_e4m3fn if native else torch.uint8)


def narrows(x: Tensor) -> bool:
    """Whether the device makes bfloat16 of 8-bit floats at once. Compute capability 9.0 has an
    instruction at a quarter of the rate, and gets there faster by way of f32.
    """
    return x.device.type != "cpu" and capability(x.device) >= (10, 0)


def grouped_sizes(places: int, experts: int, form: str, size: int) -> dict[str, int]:
    """Sizes of a program's tile, by the rows that an expert has on average."""
    rows = power(min(ceiling(places, experts), 128), 16)
    wide = rows >= 64
    inputs = 64 if size == 2 else 32
    if form == "fp8_block" or (form == "mxfp4" and not wide):
        inputs = BLOCK
    return {
        "BLOCK_M": rows,
        "BLOCK_N": 128 if wide and form == "plain" else 64,
        # Twice as many of MXFP4 spill thousands of bytes of a thread in the widest tiles.
        "BLOCK_K": inputs,
        "num_warps": 8 if wide else 4,
        "num_stages": 3,
    }


@jit
def _of_bits(code, dtype: tl.constexpr):
    """Numbers of e4m3 codes."""
    magnitude = (code & 0x7F).to(tl.int32)
    normal = ((magnitude + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    number = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    return tl.where(code > 127, -number, number).to(dtype)


@jit
def _of_nibbles(pairs, exponents, dtype: tl.constexpr):
    """Numbers [outputs, inputs] of MXFP4 codes [outputs, inputs / 2], the low bits first, and of
    their scales' exponents [outputs, inputs / 32], none above LARGEST_EXPONENT.

    A code's bits are those of a float of its number times the least normal one, also of one half,
    whose float is subnormal: a product with a power of two gives the number at once.
    """
    LEAST: tl.constexpr = 14 if dtype == tl.float16 else 126
    OUTPUTS: tl.constexpr = pairs.shape[0]
    GROUPS: tl.constexpr = exponents.shape[1]
    factor = ((exponents.to(tl.int32) + LEAST) << 23).to(tl.float32, bitcast=True).to(dtype)
    factor = tl.broadcast_to(factor[:, :, None], [OUTPUTS, GROUPS, 16])
    factor = tl.reshape(factor, [OUTPUTS, GROUPS * 16])
    bits = pairs.to(tl.uint32)
    if dtype == tl.float32:
        # A nibble times 2^22 + 2^28: the magnitude and the sign in their places.
        low = ((bits & 15) * 0x10400000) & 0x81C00000
        high = ((bits >> 4) * 0x10400000) & 0x81C00000
    else:
        # Both nibbles of a byte at once, in the halves of a word.
        AT: tl.constexpr = 9 if dtype == tl.float16 else 6
        both = (bits * ((1 << AT) + (1 << AT + 12))) & ((7 << AT) + (7 << AT + 16))
        both = both | ((bits * 0x1001000) & 0x80008000)
        low, high = both.to(tl.uint16), (both >> 16).to(tl.uint16)
    low = low.to(dtype, bitcast=True) * factor
    high = high.to(dtype, bitcast=True) * factor
    return tl.interleave(low, high)


@jit
def _own_rows(ends, tile, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr):
    """Expert of a tile, its first place and the end of the expert's places; an expert beyond the
    last where there is no such tile.
    """
    e = tl.arange(0, BLOCK_E)
    end = tl.load(ends + e, mask=e < EXPERTS, other=0)
    begin = tl.load(ends + e - 1, mask=(e > 0) & (e < EXPERTS), other=0)
    tiles = tl.where(e < EXPERTS, (end - begin + BLOCK_M - 1) // BLOCK_M, 0)
    until = tl.cumsum(tiles, 0)
    expert = tl.sum((until <= tile).to(tl.int32), 0)
    mine = e == expert
    first = tl.sum(tl.where(mine, begin + (tile - until + tiles) * BLOCK_M, 0), 0)
    return expert, first, tl.sum(tl.where(mine, end, 0), 0)


@jit
def _grouped(
    x,
    codes,
    scales,
    bias,
    ends,
    order,
    factors,
    out,
    stride_x,
    stride_expert,
    stride_output,
    stride_se,
    stride_so,
    outputs,
    inputs,
    each,
    EXPERTS: tl.constexpr,
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
    expert, first, end = _own_rows(ends, tl.program_id(1), EXPERTS, BLOCK_E, BLOCK_M)
    if expert < EXPERTS:
        m = first + tl.arange(0, BLOCK_M)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        own, column = m < end, n < outputs
        place = m
        if ORDERED:
            place = tl.load(order + m, mask=own, other=0)
        row = x + (place // each).to(tl.int64)[:, None] * stride_x
        matrix = codes + expert.to(tl.int64) * stride_expert
        scale = scales + expert.to(tl.int64) * stride_se
        dtype: tl.constexpr = x.dtype.element_ty
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for at in range(0, inputs, BLOCK_K):
            j = at + tl.arange(0, BLOCK_K)
            here = own[:, None] & (j < inputs)[None, :]
            numbers = tl.load(row + j[None, :], mask=here, other=0.0)
            if FORM == "mxfp4":
                i = at // 2 + tl.arange(0, BLOCK_K // 2)
                known = column[:, None] & (i < inputs // 2)[None, :]
                start = n.to(tl.int64)[:, None] * stride_output
                pairs = tl.load(matrix + start + i[None, :], mask=known, other=0)
                g = at // 32 + tl.arange(0, BLOCK_K // 32)
                known = column[:, None] & (g < inputs // 32)[None, :]
                to = scale + n[:, None] * stride_so + g[None, :]
                exponents = tl.load(to, mask=known, other=0)
                weight = _of_nibbles(pairs, exponents, dtype)
                acc = tl.dot(numbers, tl.trans(weight), acc, input_precision="ieee")
            else:
                known = column[None, :] & (j < inputs)[:, None]
                code = tl.load(
                    matrix + n.to(tl.int64)[None, :] * stride_output + j[:, None],
                    mask=known,
                    other=0.0 if NATIVE else 0,
                )
                if FORM == "fp8_block":
                    if not NATIVE:
                        weight = _of_bits(code, dtype)
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
