"""Latent attention (DeepSeek-V2, absorbed): all query heads share one key per token, the latent,
whose first elements are also the value.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.backends.torch.kernels.attention import (
    Scoring,
    attend_reference,
    places,
    shares,
    weigh,
)
from penstock.backends.torch.kernels.decode import split_count
from penstock.backends.torch.kernels.language import (
    capability,
    ceiling,
    jit_with_varying,
    launches,
    power,
    shared_memory,
    tl,
)
from penstock.backends.torch.kernels.merge import merge_splits, room_for_parts


def attend_latent(
    q: Tensor,
    pool: Tensor,
    tables: Tensor,
    positions: Tensor,
    sequences: Tensor,
    *,
    value_width: int,
    scale: float,
) -> Tensor:
    """Attention of rows `q` [rows, hq, width] over the latents of all tokens up to and including
    the row's: [rows, hq, value_width].

    `pool` is a layer's view [blocks, tokens, width]; row i is at `positions[i]` of sequence
    `sequences[i]`, whose blocks are `tables[sequences[i]]`. A row at a negative position attends to
    nothing.
    """
    given = (q, pool, tables, positions, sequences)
    if launches(q):
        return attend_latent_triton(*given, value_width=value_width, scale=scale)
    return attend_latent_reference(*given, value_width=value_width, scale=scale)


def attend_latent_reference(
    q: Tensor,
    pool: Tensor,
    tables: Tensor,
    positions: Tensor,
    sequences: Tensor,
    *,
    value_width: int,
    scale: float,
) -> Tensor:
    keys = pool.unsqueeze(1)
    values = keys[..., :value_width]
    return attend_reference(q, keys, values, tables, positions, sequences, Scoring(scale))


def attend_latent_triton(
    q: Tensor,
    pool: Tensor,
    tables: Tensor,
    positions: Tensor,
    sequences: Tensor,
    *,
    value_width: int,
    scale: float,
    splits: int | None = None,
) -> Tensor:
    (rows, hq, width), tokens = q.shape, pool.shape[1]
    room = shared_memory(q.device)
    blackwell = q.device.type != "cpu" and capability(q.device)[0] in (10, 11)
    sizes = latent_sizes(hq, width, value_width, q.element_size(), room, blackwell)
    tiles = ceiling(hq, sizes["BLOCK_H"])
    if splits is None:
        splits = split_count(rows * tiles, tables.shape[1] * tokens, q.device)
    out = torch.empty(rows, hq, value_width, dtype=q.dtype, device=q.device)
    if rows == 0:
        return out
    # Store partial results even for a single split. A direct store to `out` would double the
    # register spills on compute capability 9.0.
    parts, sums = room_for_parts((rows, hq, splits, value_width), q.device)
    _attend_latent[(rows, tiles, splits)](
        *(q, pool, tables, positions, sequences, parts, sums),
        *(q.stride(0), q.stride(1), tables.stride(0), pool.stride(0), pool.stride(1)),
        scale * math.log2(math.e),
        HQ=hq,
        WIDTH=width,
        VALUE=value_width,
        TOKENS=tokens,
        **sizes,
    )
    return merge_splits(parts, sums, None, out)


def latent_sizes(
    hq: int, width: int, value_width: int, size: int, room: int, blackwell: bool
) -> dict[str, int]:
    """Tile sizes of a program: the number of query heads that share the latents it reads, and of
    tokens. `size`: bytes per element; `room`: bytes of shared memory available to a program. 32
    tokens and 64 heads take 112 KiB.

    Five stages, as in `decode_sizes`, take 184 KiB with 64 heads. With 16 heads, eight warps would
    compute each score twice, so four are used. With more heads, `APART` avoids the double
    computation. It is off on compute capability 10.0, where accumulators are in tensor memory and
    `APART` would exceed its size.
    """
    heads = min(power(hq, 16), 64 if size == 2 else 16)
    return {
        "BLOCK_H": heads,
        "BLOCK_N": 32 if size == 2 and room >= 128 << 10 else 16,
        "BLOCK_V": power(value_width, 16),
        "BLOCK_R": power(width - value_width, 16),
        "APART": heads > 16 and not blackwell,
        "num_warps": 4 if heads == 16 else 8,
        "num_stages": 5 if room >= 200 << 10 else 2,
    }


@jit_with_varying("tables", "positions", "sequences", "stride_table")
def _attend_latent(
    q,
    pool,
    tables,
    positions,
    sequences,
    parts,
    sums,
    stride_row,
    stride_head,
    stride_table,
    stride_block,
    stride_token,
    scale,
    HQ: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr,
    APART: tl.constexpr,
):
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    n, e, r = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    own = h < HQ
    length = tl.load(positions + row).to(tl.int32) + 1
    table = tables + tl.load(sequences + row).to(tl.int64) * stride_table
    each = tl.cdiv(tl.cdiv(tl.maximum(length, 0), BLOCK_N), tl.num_programs(2)) * BLOCK_N
    start = split * each
    end = tl.minimum(start + each, length)
    first = q + row * stride_row + h[:, None] * stride_head
    # The part that is also the value, and the rest.
    queries = tl.load(first + e[None, :], mask=own[:, None] & (e < VALUE)[None, :], other=0.0)
    rest = own[:, None] & (VALUE + r < WIDTH)[None, :]
    queries_r = tl.load(first + VALUE + r[None, :], mask=rest, other=0.0)
    most = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
    for at in range(start, end, BLOCK_N):
        if APART:  # noqa: SIM102 (the one is known when it is compiled)
            # Never executed. This use of the accumulator, before a product, ends that product
            # before the branch behind it. Otherwise ptxas serialises all matrix products on 9.0
            # (C7515).
            if end < 0:
                acc = acc * 0.0
        token = at + n
        seen = token < end
        block, offset = places(table, at, end, TOKENS, BLOCK_N)
        at_key = pool + block * stride_block + offset * stride_token
        values = tl.load(
            at_key[:, None] + e[None, :], mask=seen[:, None] & (e < VALUE)[None, :], other=0.0
        ).to(queries.dtype)
        keys_r = tl.load(
            at_key[:, None] + VALUE + r[None, :],
            mask=seen[:, None] & (VALUE + r < WIDTH)[None, :],
            other=0.0,
        ).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(values), input_precision="ieee")
        if APART:
            # The branch hides from Triton that another product uses the scores. Otherwise each warp
            # group on 9.0 would compute the scores of all tokens, and not only its own.
            scores_r = tl.dot(queries_r, tl.trans(keys_r), input_precision="ieee")
            if at + BLOCK_N > end:
                scores = tl.where(seen[None, :], scores + scores_r, float("-inf"))
            else:
                scores = scores + scores_r
        else:
            scores = tl.dot(queries_r, tl.trans(keys_r), scores, input_precision="ieee")
            scores = tl.where(seen[None, :], scores, float("-inf"))
        most, weights, factor = weigh(scores, scale, most)
        total = total * factor + tl.sum(weights, 1)
        acc = tl.dot(
            weights.to(queries.dtype), values, acc * factor[:, None], input_precision="ieee"
        )
    place = (row * HQ + h) * tl.num_programs(2) + split
    acc = shares(acc, total, most, sums, h, own, False)
    to = parts + place[:, None] * VALUE + e[None, :]
    tl.store(to, acc, mask=own[:, None] & (e < VALUE)[None, :])
    tl.store(sums + place, most + tl.log2(total), mask=own)
