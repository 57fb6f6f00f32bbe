"""Merges the partial attention results that several programs computed for a row."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import jit, jit_with_varying, power, tl

MOST_SPLITS = 32
"""Maximum number of programs that share one row and head."""


def merge_splits_reference(
    parts: Tensor, sums: Tensor, sinks: Tensor | None, out: Tensor, *, count: Tensor | None = None
) -> Tensor:
    """Write `out` [rows, hq, width]: the sum over splits of `parts` [rows, hq, splits, width],
    weighted by `sums`.

    `sums` [rows, hq, splits] are base-2 logarithms of the total weight of each part, minus infinity
    for a part without tokens. `sinks` [hq] are natural logarithms. With `count` [1], only the first
    `count` rows are written; each has `splits_of` parts, which are contiguous.
    """
    if count is not None:
        (_, hq, _, width), rows = parts.shape, int(count)
        splits = splits_of(len(parts), rows)
        numbers = rows * hq * splits
        parts = parts.flatten()[: numbers * width].view(rows, hq, splits, width)
        sums, out = sums.flatten()[:numbers].view(rows, hq, splits), out[:rows]
    sums = sums * torch.log(torch.tensor(2.0))
    every = (
        sums
        if sinks is None
        else torch.cat([sums, sinks.float().view(1, -1, 1).expand(len(sums), -1, 1)], dim=2)
    )
    weights = torch.exp(sums - every.logsumexp(2, keepdim=True)).nan_to_num(0.0)
    out.copy_((weights.unsqueeze(3) * parts).sum(2))
    return out


def splits_of(programs: int, count: int) -> int:
    """Splits per row if `count` rows share `programs` programs."""
    return min(programs // max(count, 1), MOST_SPLITS)


def room_for_parts(shape: tuple[int, int, int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Uninitialised f32 memory for partial results of the shape [rows, hq, splits, width], and for
    their sums.
    """
    parts = torch.empty(shape, dtype=torch.float32, device=device)
    return parts, torch.empty(shape[:3], dtype=torch.float32, device=device)


def merge_splits(
    parts: Tensor,
    sums: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    *,
    rows: int | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """`merge_splits_reference` on a GPU. `rows`: upper bound of the number in `count`."""
    programs, hq, splits, width = parts.shape
    splits = splits if count is None else MOST_SPLITS
    _merge[(rows or programs, hq)](
        *(parts, sums, sums if sinks is None else sinks, out),
        *(sums if count is None else count, programs),
        SPLITS=splits,
        WIDTH=width,
        SINKS=sinks is not None,
        COUNTED=count is not None,
        BLOCK_S=power(splits),
        BLOCK_W=power(width),
        num_warps=2,
    )
    return out


@jit
def row_splits(singles, programs, MOST: tl.constexpr):
    """Number of rows, and `splits_of` each."""
    rows = tl.load(singles)
    return rows, tl.minimum(programs // tl.maximum(rows, 1), MOST)


@jit_with_varying("singles", "programs")
def _merge(
    parts,
    sums,
    sinks,
    out,
    singles,
    programs,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    SINKS: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    s, w = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_W)
    splits, parts_of, width = SPLITS, SPLITS, WIDTH
    if COUNTED:
        rows, splits = row_splits(singles, programs, SPLITS)
        parts_of = tl.where(tl.program_id(0) < rows, splits, 0)
        width = tl.where(tl.program_id(0) < rows, WIDTH, 0)
    own, stored = s < parts_of, w < width
    each = tl.load(sums + row * splits + s, mask=own, other=float("-inf"))
    most = tl.max(each, 0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        most = tl.maximum(most, sink)
    # The maximum is minus infinity for a row that attends to nothing.
    weights = tl.where(each > float("-inf"), tl.exp2(each - most), 0.0)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp2(sink - most)
    place = (row * splits + s)[:, None] * WIDTH + w[None, :]
    part = tl.load(parts + place, mask=own[:, None] & (w < WIDTH)[None, :], other=0.0)
    merged = tl.sum(part * weights[:, None], 0)
    merged = tl.where(total > 0, merged / total, 0.0)
    tl.store(out + row * WIDTH + w, merged.to(out.dtype.element_ty), mask=stored)
