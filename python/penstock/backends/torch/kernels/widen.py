"""Dequantises matrices to memory once, for products with many rows."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from penstock.backends.torch.kernels.codes import of_bits, of_words, on_device
from penstock.backends.torch.kernels.language import ceiling, jit_with_varying, tl
from penstock.backends.torch.kernels.matrix import BLOCK, Matrix

SIZES = {"BLOCK_N": 64, "BLOCK_K": BLOCK, "num_warps": 4}
"""Tile sizes, chosen so that a tile is within one block of an FP8 matrix and has one scale."""


def pieces(matrix: Matrix, scratch: Tensor) -> Iterator[range]:
    """Consecutive ranges of experts whose widened matrices fit into `scratch` together. `scratch`
    must have room for at least one.
    """
    count, outputs, inputs = matrix.shape
    each = scratch.numel() // (outputs * inputs)
    for first in range(0, count, each):
        yield range(first, min(count, first + each))


def widen_reference(matrix: Matrix, part: range, scratch: Tensor) -> Tensor:
    out = _room(matrix, part, scratch)
    scales = None if matrix.scales is None else matrix.scales[part.start : part.stop]
    codes = matrix.codes[part.start : part.stop]
    return out.copy_(Matrix(codes, scales, form=matrix.form).dense())


def widen_triton(matrix: Matrix, part: range, scratch: Tensor) -> Tensor:
    """Dequantise the matrices of the experts in `part`, at the beginning of `scratch` and in its
    type: [experts, outputs, inputs].

    MXFP4 is exact in bfloat16. The product of an FP8 number and its scale is rounded, with a
    relative error of at most 2^-8.
    """
    out = _room(matrix, part, scratch)
    count, outputs, inputs = out.shape
    codes, scales = on_device(matrix, scratch.device), matrix.scales
    assert scales is not None
    grid = (ceiling(inputs, SIZES["BLOCK_K"]), ceiling(outputs, SIZES["BLOCK_N"]), count)
    _widen[grid](
        *(codes, scales, out, part.start),
        *(*codes.stride()[:2], *scales.stride()[:2], outputs, inputs),
        FORM=matrix.form,
        NATIVE=codes.is_floating_point(),
        **SIZES,
    )
    return out


def _room(matrix: Matrix, part: range, scratch: Tensor) -> Tensor:
    _, outputs, inputs = matrix.shape
    return scratch[: len(part) * outputs * inputs].view(len(part), outputs, inputs)


@jit_with_varying("first")
def _widen(
    codes,
    scales,
    out,
    first,
    stride_expert,
    stride_output,
    stride_se,
    stride_so,
    outputs,
    inputs,
    FORM: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    j = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    expert = (first + tl.program_id(2)).to(tl.int64)
    matrix, scale = codes + expert * stride_expert, scales + expert * stride_se
    own = (n < outputs)[:, None]
    row = n.to(tl.int64)[:, None]
    known = own & (j < inputs)[None, :]
    dtype: tl.constexpr = out.dtype.element_ty
    if FORM == "mxfp4":
        i = tl.program_id(0) * (BLOCK_K // 8) + tl.arange(0, BLOCK_K // 8)
        here = own & (i < inputs // 8)[None, :]
        words = tl.load(matrix + row * stride_output + i[None, :], mask=here, other=0)
        g = tl.program_id(0) * (BLOCK_K // 32) + tl.arange(0, BLOCK_K // 32)
        here = own & (g < inputs // 32)[None, :]
        exponents = tl.load(scale + row * stride_so + g[None, :], mask=here, other=0)
        numbers = of_words(words.to(tl.uint32, bitcast=True), exponents, dtype)
    else:
        other: tl.constexpr = 0.0 if NATIVE else 0
        code = tl.load(matrix + row * stride_output + j[None, :], mask=known, other=other)
        wide = code.to(tl.float32) if NATIVE else of_bits(code, tl.float32)
        block = tl.load(scale + tl.program_id(1) * BLOCK_N // 128 * stride_so + tl.program_id(0))
        numbers = (wide * block).to(dtype)
    to = out + tl.program_id(2).to(tl.int64) * outputs * inputs + row * inputs + j[None, :]
    tl.store(to, numbers, mask=known)
