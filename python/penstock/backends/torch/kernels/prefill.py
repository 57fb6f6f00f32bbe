"""Attention of several rows of each sequence: chunks of prompts, and drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.attention import (
    Scoring,
    attend_reference,
    capped,
    places,
    shares,
    weigh,
)
from penstock.backends.torch.kernels.language import (
    ceiling,
    jit_with_varying,
    launches,
    power,
    shared_memory,
    tl,
)


def attend_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    starts: Tensor,
    offsets: Tensor,
    scoring: Scoring,
    *,
    max_rows: int,
) -> Tensor:
    """Attention of the rows of each sequence: [rows, hq, width of a value].

    Sequence s has the rows `offsets[s]` to `offsets[s + 1]` of `q` [rows, hq, d], at the positions
    from `starts[s]` on, and no sequence more than `max_rows`. The other arguments are those of
    `attend_decode`; the rows' own keys are in the pool already.
    """
    compute = attend_prefill_triton if launches(q) else attend_prefill_reference
    return compute(q, k, v, tables, starts, offsets, scoring, max_rows=max_rows)


def attend_prefill_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    starts: Tensor,
    offsets: Tensor,
    scoring: Scoring,
    *,
    max_rows: int,
) -> Tensor:
    sequences = torch.repeat_interleave(
        torch.arange(len(starts), device=q.device), offsets.diff().long()
    )
    own = torch.arange(len(sequences), device=q.device)
    positions = starts.long()[sequences] + own - offsets.long()[sequences]
    # Rows of padding after the last sequence see nothing.
    padding = len(q) - len(sequences)
    out = attend_reference(q[: len(sequences)], k, v, tables, positions, sequences, scoring)
    return torch.cat([out, out.new_zeros(padding, *out.shape[1:])]) if padding else out


def attend_prefill_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    starts: Tensor,
    offsets: Tensor,
    scoring: Scoring,
    *,
    max_rows: int,
) -> Tensor:
    (rows, hq, d), (_, hk, tokens, dv) = q.shape, v.shape
    # Rows of padding are of no sequence.
    out = torch.zeros(rows, hq, dv, dtype=q.dtype, device=q.device)
    if rows == 0 or max_rows == 0:
        return out
    room = shared_memory(q.device)
    sizes = prefill_sizes(hq // hk, d, dv, q.element_size(), max_rows, room)
    tiles = ceiling(max_rows, sizes["BLOCK_M"] // (hq // hk))
    _attend_prefill[(tiles, hk, len(starts))](
        *(q, k, v, tables, starts, offsets),
        *(q if scoring.sinks is None else scoring.sinks, out),
        *(q.stride(0), q.stride(1), tables.stride(0)),
        *(*k.stride()[:3], *v.stride()[:3]),
        *scoring.in_powers(),
        HQ=hq,
        GROUP=hq // hk,
        D=d,
        DV=dv,
        TOKENS=tokens,
        WINDOW=scoring.window,
        CHUNK=scoring.chunk,
        SOFTCAP=scoring.softcap != 0,
        SINKS=scoring.sinks is not None,
        **sizes,
    )
    return out


def prefill_sizes(
    group: int, d: int, dv: int, size: int, max_rows: int, room: int
) -> dict[str, int]:
    """Sizes of a program's tile: rows of `group` query heads each, and tokens. `room` is the shared
    memory of a program: five stages, as in `decode_sizes`, take 128 KiB on 9.0 and 10.0.
    """
    wide = max(power(d), power(dv)) * size
    most = 128 if wide <= 256 else 64 if wide <= 512 else 32
    rows = min(power(max_rows * group, 16), max(most, power(group)))
    return {
        "BLOCK_M": rows,
        "BLOCK_N": 64 if wide <= 256 else 32 if wide <= 512 else 16,
        "BLOCK_D": power(d, 16),
        "BLOCK_V": power(dv, 16),
        "num_warps": 8 if rows >= 128 else 4,
        "num_stages": 5 if wide <= 256 and room >= 200 << 10 else 2,
    }


@jit_with_varying("tables", "starts", "offsets", "stride_table")
def _attend_prefill(
    q,
    k,
    v,
    tables,
    starts,
    offsets,
    sinks,
    out,
    stride_row,
    stride_head,
    stride_table,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_vb,
    stride_vh,
    stride_vt,
    scale,
    softcap,
    HQ: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    ROWS: tl.constexpr = BLOCK_M // GROUP
    head, sequence = tl.program_id(1), tl.program_id(2)
    # The last rows see the most tokens: they begin first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    begin = tl.load(offsets + sequence)
    rows = tl.load(offsets + sequence + 1) - begin
    if tile * ROWS < rows:
        m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
        d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        row = tile * ROWS + m // GROUP
        query_head = head * GROUP + m % GROUP
        own = (m < ROWS * GROUP) & (row < rows)
        start = tl.load(starts + sequence)
        position = start + row
        place = (begin + row).to(tl.int64)
        queries = tl.load(
            q + (place * stride_row + query_head * stride_head)[:, None] + d[None, :],
            mask=own[:, None] & (d < D)[None, :],
            other=0.0,
        )
        end = start + tl.minimum(tile * ROWS + ROWS, rows)
        first = 0
        if WINDOW > 0:
            first = tl.maximum(start + tile * ROWS - WINDOW + 1, 0)
        if CHUNK > 0:
            first = (start + tile * ROWS) // CHUNK * CHUNK
        most = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        table = tables + sequence.to(tl.int64) * stride_table
        for at in range(first // BLOCK_N * BLOCK_N, end, BLOCK_N):
            token = at + n
            known = (token >= first) & (token < end)
            block, offset = places(table, at, end, TOKENS, BLOCK_N)
            from_k = k + head * stride_kh + block * stride_kb + offset * stride_kt
            from_v = v + head * stride_vh + block * stride_vb + offset * stride_vt
            # What is not a number in an unused row must not meet a weight of zero.
            keys = tl.load(
                from_k[None, :] + d[:, None], mask=known[None, :] & (d < D)[:, None], other=0.0
            )
            values = tl.load(
                from_v[:, None] + e[None, :], mask=known[:, None] & (e < DV)[None, :], other=0.0
            )
            scores = tl.dot(queries, keys.to(queries.dtype), input_precision="ieee")
            if SOFTCAP:
                scores = capped(scores, softcap)
            # Of the rows that are stored, none is behind `end` or sees what is before `first`.
            seen = token[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (token[None, :] > position[:, None] - WINDOW)
            if CHUNK > 0:
                seen = seen & (token[None, :] // CHUNK == position[:, None] // CHUNK)
            scores = tl.where(seen, scores, float("-inf"))
            most, weights, factor = weigh(scores, scale, most)
            total = total * factor + tl.sum(weights, 1)
            acc = acc * factor[:, None]
            acc = tl.dot(
                weights.to(queries.dtype), values.to(queries.dtype), acc, input_precision="ieee"
            )
        acc = shares(acc, total, most, sinks, query_head, own, SINKS)
        to = out + (place * HQ + query_head)[:, None] * DV + e[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=own[:, None] & (e < DV)[None, :])
