"""One row of attention from the parts that several programs computed of it."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import jit, power, tl


def merge_splits_reference(
    parts: Tensor, sums: Tensor, sinks: Tensor | None, out: Tensor
) -> Tensor:
    """Write `out` [rows, hq, width]: the parts [rows, hq, splits, width] weighted by their sums.

    A sum [rows, hq, splits] is the base-2 logarithm of the sum of its part's weights, minus
    infinity for a part without tokens. `sinks` [hq] are natural logarithms.
    """
    sums = sums * torch.log(torch.tensor(2.0))
    every = (
        sums
        if sinks is None
        else torch.cat([sums, sinks.float().view(1, -1, 1).expand(len(sums), -1, 1)], dim=2)
    )
    weights = torch.exp(sums - every.logsumexp(2, keepdim=True)).nan_to_num(0.0)
    out.copy_((weights.unsqueeze(3) * parts).sum(2))
    return out


def room_for_parts(
    shape: tuple[int, int, int, int], device: torch.device, scratch: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Memory for parts of the shape [rows, hq, splits, width] and for their sums, in `scratch` of
    f32 where that is large enough.
    """
    *sums, width = shape
    count = sums[0] * sums[1] * sums[2]
    numbers = count * (width + 1)
    if scratch is None or len(scratch) < numbers:
        scratch = torch.empty(numbers, dtype=torch.float32, device=device)
    return scratch[: count * width].view(shape), scratch[count * width : numbers].view(sums)


def merge_splits(parts: Tensor, sums: Tensor, sinks: Tensor | None, out: Tensor) -> Tensor:
    rows, hq, splits, width = parts.shape
    _merge[(rows, hq)](
        *(parts, sums, sums if sinks is None else sinks, out),
        SPLITS=splits,
        WIDTH=width,
        SINKS=sinks is not None,
        BLOCK_S=power(splits),
        BLOCK_W=power(width),
        num_warps=2,
    )
    return out


@jit
def _merge(
    parts,
    sums,
    sinks,
    out,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    SINKS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    s, w = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_W)
    own = s < SPLITS
    each = tl.load(sums + row * SPLITS + s, mask=own, other=float("-inf"))
    most = tl.max(each, 0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        most = tl.maximum(most, sink)
    # A row that sees nothing has no largest sum.
    weights = tl.where(each > float("-inf"), tl.exp2(each - most), 0.0)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp2(sink - most)
    place = (row * SPLITS + s)[:, None] * WIDTH + w[None, :]
    part = tl.load(parts + place, mask=own[:, None] & (w < WIDTH)[None, :], other=0.0)
    merged = tl.sum(part * weights[:, None], 0)
    merged = tl.where(total > 0, merged / total, 0.0)
    tl.store(out + row * WIDTH + w, merged.to(out.dtype.element_ty), mask=w < WIDTH)
