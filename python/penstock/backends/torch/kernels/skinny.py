"""Products of few rows (1 to 16) with a matrix. Their time is bound by reading the matrix.

A tile is 16 or 32 rows of the matrix by 256 or 512 columns, 16 KiB; three more tiles are in flight
while one is computed. Warps divide the columns. The products run on tensor cores, with the matrix
as the left operand and the rows padded to 8 or 16 as the right one, so a tile takes few
instructions. A row's result is bitwise the same in all batches of 1 to 8 rows, and in all batches
of 9 to 16. If whole matrix rows give too few programs, several programs share them; the last one to
finish adds the partial sums, in f32 and in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels.activation import (
    Activation,
    activate_reference,
    activated,
)
from penstock.backends.torch.kernels.codes import of_bits, of_words
from penstock.backends.torch.kernels.language import (
    ceiling,
    jit,
    jit_with_varying,
    launches,
    multiprocessors,
    power,
    tl,
)

MOST_ROWS = 16
BUCKETS = (1, 2, 4, 8, 16)
"""Row counts for which start-up chooses a kernel separately."""
LEAST_BYTES = 1 << 20
"""Minimum bytes of a matrix for these kernels. For smaller matrices, reading is not the
bottleneck.
"""
COUNTERS = 1 << 16
_MOST_SPLITS = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of a tile, the part of the matrix that a program reads at once."""

    outputs: int
    """Matrix rows per tile."""
    parts: int
    """Warps that divide the tile's columns."""
    inputs: int
    """Matrix columns per warp."""

    @property
    def step(self) -> int:
        """Matrix columns per tile."""
        return self.parts * self.inputs


NARROW = Tiling(16, 4, 128)
WIDE = Tiling(32, 2, 128)
TILINGS = (NARROW, WIDE)
STAGES = 4
PADDED_ROWS = 8
"""Minimum width of the tensor cores' right operand. A single row uses one of these columns."""


def fits(x: Tensor, weight: Tensor) -> bool:
    """True if the kernel supports `x` and `weight`. It copies 16 bytes at a time."""
    aligned = weight.is_contiguous() and weight.shape[-1] % 16 == 0 == weight.data_ptr() % 16
    halves = x.dtype == weight.dtype and x.dtype.itemsize == 2
    return launches(x) and halves and aligned and len(x) <= MOST_ROWS


def skinny_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    tiling: Tiling = NARROW,
) -> Tensor:
    """Product of rows `x` [rows, inputs] with `weight` [outputs, inputs]: [rows, outputs] in the
    type of `x`. With an activation, the first half of the outputs is the gate of the second half,
    and the result is [rows, outputs / 2]. Sums are f32, rounded once.

    `x` has at most `MOST_ROWS` rows, and `fits` must be true.
    """
    compute = skinny_product_triton if launches(x) else skinny_product_reference
    return compute(x, weight, bias, activation, tiling)


def skinny_product_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    _tiling: Tiling = NARROW,
) -> Tensor:
    sums = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return (sums if activation is None else activate_reference(sums, activation)).to(x.dtype)


def skinny_product_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    tiling: Tiling = NARROW,
) -> Tensor:
    rows, (outputs, inputs) = len(x), weight.shape
    rule, gated = activation or _NONE, activation is not None
    width = outputs // 2 if gated else outputs
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    padded, block = power(rows, PADDED_ROWS), tiling.outputs // 2 if gated else tiling.outputs
    tiles = ceiling(width, block)
    splits = _splits(tiles, ceiling(inputs, tiling.step), multiprocessors(x.device))
    parts, counts = out, out
    if splits > 1:
        size = (tiles, splits, tiling.outputs, padded)
        parts, counts = torch.empty(size, device=x.device), counters(x.device)
    _product[(tiles, splits)](
        *(x, weight, x if bias is None else bias, out, parts, counts),
        *(x.stride(0), width, inputs, rows),
        *(ceiling(ceiling(inputs, tiling.step), splits) * tiling.step, splits),
        *(rule.limit, rule.alpha, rule.offset),
        KIND=rule.kind if gated else "",
        BIAS=bias is not None,
        SPLIT=splits > 1,
        ROWS=padded,
        BLOCK_N=block,
        BLOCK_K=tiling.inputs,
        PARTS=tiling.parts,
        STAGES=STAGES,
        num_warps=tiling.parts,
    )
    return out


_NONE = Activation("silu")


def _splits(tiles: int, steps: int, processors: int) -> int:
    """Number of programs that share the columns of one row tile: a power of two large enough to
    fill the device.
    """
    splits = 1
    while 2 * tiles * splits < 3 * processors and 2 * splits <= min(steps, _MOST_SPLITS):
        splits *= 2
    return splits if tiles <= COUNTERS else 1


@cache
def counters(device: torch.device) -> Tensor:
    """[COUNTERS] int32, zero between launches. Programs that share a result increment a counter
    when they finish, and the last one resets it, so that kernels on one stream can share the
    counters.
    """
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@jit
def column_sums(
    x,
    stride_x,
    rows,
    matrix,
    scales,
    row,
    known,
    stride_output,
    stride_scale,
    first,
    last,
    FORM: tl.constexpr,
    NATIVE: tl.constexpr,
    BY_F32: tl.constexpr,
    ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """f32 products [NUMBERS, ROWS] of the matrix rows `row` [NUMBERS], masked by `known`, with
    `rows` rows of `x`, over the columns from `first` to `last`. For the forms see `Matrix`. With
    FP8, a warp's columns are one block.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    r, k, p = tl.arange(0, ROWS), tl.arange(0, BLOCK_K), tl.arange(0, PARTS)
    part = p[:, None] * BLOCK_K + k[None, :]
    begin = matrix + row.to(tl.int64)[None, :, None] * stride_output
    acc = tl.zeros([PARTS, NUMBERS, ROWS], tl.float32)
    for at in tl.range(first, last, PARTS * BLOCK_K, num_stages=STAGES):
        j = at + part
        inside = (r < rows)[None, None, :] & (j < last)[:, :, None]
        to = x + r[None, None, :] * stride_x + j[:, :, None]
        numbers = tl.load(to, mask=inside, other=0.0)
        if FORM == "mxfp4":
            i = at // 8 + p[:, None] * (BLOCK_K // 8) + tl.arange(0, BLOCK_K // 8)[None, :]
            here = known[None, :, None] & (i < last // 8)[:, None, :]
            words = tl.load(begin + i[:, None, :], mask=here, other=0)
            g = at // 32 + p[:, None] * (BLOCK_K // 32) + tl.arange(0, BLOCK_K // 32)[None, :]
            here = known[None, :, None] & (g < last // 32)[:, None, :]
            to = scales + row[None, :, None] * stride_scale + g[:, None, :]
            exponents = tl.load(to, mask=here, other=0)
            weights = of_words(
                tl.reshape(words, [PARTS * NUMBERS, BLOCK_K // 8]).to(tl.uint32, bitcast=True),
                tl.reshape(exponents, [PARTS * NUMBERS, BLOCK_K // 32]),
                dtype,
            )
            weights = tl.reshape(weights, [PARTS, NUMBERS, BLOCK_K])
            acc = tl.dot(weights, numbers, acc, input_precision="ieee")
        else:
            here = known[None, :, None] & (j < last)[:, None, :]
            empty = 0.0 if NATIVE else 0
            codes = tl.load(begin + j[:, None, :], mask=here, other=empty)
            if FORM == "fp8_block":
                if not NATIVE:
                    weights = of_bits(codes, dtype)
                elif BY_F32:
                    weights = codes.to(tl.float32).to(dtype)
                else:
                    weights = codes.to(dtype)
                block = (row // 128 * stride_scale)[None, :] + (at // 128 + p)[:, None]
                here = known[None, :] & (at + p * BLOCK_K < last)[:, None]
                scale = tl.load(scales + block, mask=here, other=0.0)
                product = tl.dot(weights, numbers, input_precision="ieee")
                acc += product * scale[:, :, None]
            else:
                acc = tl.dot(codes, numbers, acc, input_precision="ieee")
    return tl.sum(acc, 0)


@jit
def first_column(sums, ROWS: tl.constexpr):
    """The first column of `sums` [n, ROWS], for a product with a single row: the other columns are
    padding.
    """
    return tl.sum(tl.where(tl.arange(0, ROWS)[None, :] == 0, sums, 0.0), 1)


@jit
def gate_and_up(sums, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """Split `sums` [2 * BLOCK_N, ROWS] into gate (the first half) and up, [BLOCK_N, ROWS] each."""
    return tl.split(tl.permute(tl.reshape(sums, [2, BLOCK_N, ROWS]), [1, 2, 0]))


@jit
def _finish(
    sums,
    bias,
    out,
    row,
    known,
    n,
    width,
    rows,
    limit,
    alpha,
    offset,
    KIND: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    r = tl.arange(0, ROWS)
    if BIAS:
        sums += tl.load(bias + row, mask=known, other=0.0).to(tl.float32)[:, None]
    if KIND != "":
        gate, up = gate_and_up(sums, BLOCK_N, ROWS)
        sums = activated(gate, up, limit, alpha, offset, KIND)
    to = out + r[None, :] * width + n[:, None]
    inside = (n < width)[:, None] & (r < rows)[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=inside)


@jit
def _summed(sums, parts, counter, splits, NUMBERS: tl.constexpr, ROWS: tl.constexpr):
    """Total of a tile's partial sums, added in column order by the last program to finish; and
    whether this program is the last.
    """
    own = tl.arange(0, NUMBERS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(parts + tl.program_id(1) * NUMBERS * ROWS + own, sums)
    # All stores of the program must be done before it increments the counter.
    tl.debug_barrier()
    ended = tl.atomic_add(counter, 1) == splits - 1
    total = tl.zeros([NUMBERS, ROWS], tl.float32)
    for split in range(tl.where(ended, splits, 0)):
        # Bypass the L1 cache, because other programs wrote these values.
        total += tl.load(parts + split * NUMBERS * ROWS + own, cache_modifier=".cg")
    if ended:
        tl.store(counter, 0)
    return total, ended


@jit_with_varying("rows")
def _product(
    x,
    weight,
    bias,
    out,
    parts,
    counts,
    stride_x,
    width,
    inputs,
    rows,
    share,
    splits,
    limit,
    alpha,
    offset,
    KIND: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile = tl.program_id(0)
    NUMBERS: tl.constexpr = BLOCK_N if KIND == "" else 2 * BLOCK_N
    m = tl.arange(0, NUMBERS)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    # In a gated tile, the first half of the rows is gate, the second half the same rows of up.
    column = tile * BLOCK_N + m % BLOCK_N
    row, known = m // BLOCK_N * width + column, column < width
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, inputs)
    sums = column_sums(
        x,
        stride_x,
        rows,
        weight,
        weight,
        row,
        known,
        inputs,
        0,
        first,
        last,
        "plain",
        True,
        False,
        ROWS,
        NUMBERS,
        BLOCK_K,
        PARTS,
        STAGES,
    )
    if SPLIT:
        counter = counts + tile
        start = parts + tile.to(tl.int64) * splits * NUMBERS * ROWS
        sums, ended = _summed(sums, start, counter, splits, NUMBERS, ROWS)
        rows = tl.where(ended, rows, 0)
    _finish(
        sums,
        bias,
        out,
        row,
        known,
        n,
        width,
        rows,
        limit,
        alpha,
        offset,
        KIND,
        BIAS,
        ROWS,
        BLOCK_N,
    )
