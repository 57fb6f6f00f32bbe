"""Decode attention: one row per sequence, whose tokens may be split over several programs."""

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
    jit,
    jit_with_varying,
    launches,
    multiprocessors,
    power,
    shared_memory,
    tl,
)
from penstock.backends.torch.kernels.merge import (
    MOST_SPLITS,
    merge_splits,
    room_for_parts,
    row_splits,
)

FILLS = 4
"""Maximum number of programs that a launch gives each multiprocessor."""
SPLIT_TOKENS = 256
"""Minimum tokens per program. With fewer, the merge costs more than a split saves."""


def attend_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    *,
    splits: int | None = None,
    count: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of the last token of each sequence: [sequences, hq, value width].

    `q` [sequences, hq, d]; `k`, `v`: views [blocks, hk, tokens, width]; `tables` [sequences, blocks
    of the longest]; `lengths` [sequences], including the row's own token; length 0 gives zeros.
    `splits`: programs that share a row's tokens; None: chosen by shape. `count` [1] int32, on the
    device: only the first `count` sequences are computed, and split as if there were no others.
    `out`, if given, receives these rows; it may have more rows.
    """
    given = (q, k, v, tables, lengths, scoring)
    if launches(q):
        return attend_decode_triton(*given, splits=splits, count=count, out=out)
    return attend_decode_reference(*given, count=count, out=out)


def attend_decode_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    *,
    count: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    rows = len(lengths) if count is None else int(count)
    sequences = torch.arange(rows, device=q.device)
    found = attend_reference(q[:rows], k, v, tables, lengths[:rows] - 1, sequences, scoring)
    if out is None:
        return found
    out[:rows] = found
    return out


def split_count(programs: int, tokens: int, device: torch.device) -> int:
    """Number of splits that give each multiprocessor two to four programs, for at most `tokens`
    tokens per sequence.
    """
    wanted = ceiling(FILLS * multiprocessors(device), max(programs, 1))
    most = max(1, min(wanted, ceiling(tokens, SPLIT_TOKENS), MOST_SPLITS))
    return int(power(most + 1)) // 2


def split_tokens(longest: int) -> list[int]:
    """Block table widths, in tokens, at which a single row is split 1, 2, 4, ... times; the last is
    `longest`.
    """
    powers = (1 << power for power in range(MOST_SPLITS.bit_length()))
    found = [splits * SPLIT_TOKENS for splits in powers]
    return [tokens for tokens in found if tokens < longest] + [longest]


def attend_decode_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    *,
    splits: int | None = None,
    count: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    rows, (_, hq, d), (_, hk, tokens, dv) = len(lengths), q.shape, v.shape
    if out is None:
        out = torch.empty(rows, hq, dv, dtype=q.dtype, device=q.device)
    if rows == 0:
        return out
    programs = rows
    if count is not None:
        # The grid has a fixed size. The rows that exist divide its programs into splits.
        programs, splits = max(rows, ceiling(FILLS * multiprocessors(q.device), hk)), 1
    elif splits is None:
        seen = scoring.window or scoring.chunk or tables.shape[1] * tokens
        splits = split_count(rows * hk, min(seen, tables.shape[1] * tokens), q.device)
    split, sinks = splits > 1 or count is not None, scoring.sinks
    parts, sums = out, out
    if split:
        parts, sums = room_for_parts((programs, hq, splits, dv), q.device)
    _attend_decode[(programs, hk, splits)](
        *(q, k, v, tables, lengths, sums if sinks is None else sinks, out, parts, sums),
        lengths if count is None else count,
        *(q.stride(0), q.stride(1), tables.stride(0)),
        *(*k.stride()[:3], *v.stride()[:3]),
        *scoring.in_powers(),
        HQ=hq,
        GROUP=hq // hk,
        D=d,
        DV=dv,
        TOKENS=tokens,
        SPLIT=split,
        LEAST=0 if count is None else SPLIT_TOKENS,
        MOST=MOST_SPLITS,
        WINDOW=scoring.window,
        CHUNK=scoring.chunk,
        SOFTCAP=scoring.softcap != 0,
        SINKS=sinks is not None,
        **decode_sizes(hq // hk, d, dv, q.element_size(), shared_memory(q.device)),
    )
    if split:
        merge_splits(parts, sums, sinks, out, rows=rows, count=count)
    return out


def decode_sizes(group: int, d: int, dv: int, size: int, room: int) -> dict[str, int]:
    """Tile sizes of a program. `group`: query heads per KV head; `d`, `dv`: elements of a key and
    of a value; `size`: bytes per element; `room`: bytes of shared memory available to a program. A
    tile has 32 KiB, so two programs fit on a multiprocessor of compute capability 8.0, three on 9.0
    and 10.0.

    Pipeline stages are shared by block indices and block contents, which are loaded one stage
    later. With five stages a tile is loaded while the previous one is computed; with three or four,
    after it.
    """
    wide = max(power(d), power(dv)) * size
    return {
        "BLOCK_G": power(group, 16),
        "BLOCK_N": max(16, min(64, (16 << 10) // wide)),
        "BLOCK_D": power(d, 16),
        "BLOCK_V": power(dv, 16),
        "num_warps": 4,
        "num_stages": 5 if room >= 160 << 10 else 3,
    }


@jit
def _own_part(lengths, singles, SHARED: tl.constexpr, MOST: tl.constexpr):
    """The row and the split of this program, the number of splits of the row, and the row's length
    in tokens. The length is -1 if the program has no row.
    """
    row, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.num_programs(2)
    if not SHARED:
        return row, split, splits, tl.load(lengths + row).to(tl.int32)
    rows, splits = row_splits(singles, tl.num_programs(0), MOST)
    row, split = row // splits, tl.program_id(0) % splits
    own = row < rows
    row = tl.where(own, row, 0)
    length = tl.where(own, tl.load(lengths + row).to(tl.int32), -1)
    return row, split, splits, length


@jit_with_varying("tables", "lengths", "singles", "stride_table")
def _attend_decode(
    q,
    k,
    v,
    tables,
    lengths,
    sinks,
    out,
    parts,
    sums,
    singles,
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
    SPLIT: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    head = tl.program_id(1)
    row, split, splits, length = _own_part(lengths, singles, LEAST > 0, MOST)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    if CHUNK > 0:
        first = tl.maximum(length - 1, 0) // CHUNK * CHUNK
    begin = first // BLOCK_N * BLOCK_N
    each = tl.cdiv(tl.cdiv(tl.maximum(length - begin, 0), BLOCK_N), splits) * BLOCK_N
    if LEAST > 0:
        each = tl.maximum(each, tl.cdiv(LEAST, BLOCK_N) * BLOCK_N)
    start = begin + split * each
    end = tl.minimum(start + each, length)

    g, n = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_N)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    own = g < tl.where(length < 0, 0, GROUP)
    queries = tl.load(
        q + row * stride_row + (head * GROUP + g)[:, None] * stride_head + d[None, :],
        mask=own[:, None] & (d < D)[None, :],
        other=0.0,
    )
    most = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_V], tl.float32)
    for at in range(start, end, BLOCK_N):
        token = at + n
        seen = (token >= first) & (token < end)
        block, offset = places(tables + row * stride_table, at, end, TOKENS, BLOCK_N)
        from_k = k + head * stride_kh + block * stride_kb + offset * stride_kt
        from_v = v + head * stride_vh + block * stride_vb + offset * stride_vt
        # Mask unused rows, because NaN times a weight of zero is NaN.
        keys = tl.load(
            from_k[None, :] + d[:, None], mask=seen[None, :] & (d < D)[:, None], other=0.0
        )
        values = tl.load(
            from_v[:, None] + e[None, :], mask=seen[:, None] & (e < DV)[None, :], other=0.0
        )
        scores = tl.dot(queries, keys.to(queries.dtype), input_precision="ieee")
        if SOFTCAP:
            scores = capped(scores, softcap)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        most, weights, factor = weigh(scores, scale, most)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None]
        acc = tl.dot(
            weights.to(queries.dtype), values.to(queries.dtype), acc, input_precision="ieee"
        )

    query_head = head * GROUP + g
    stored = own[:, None] & (e < DV)[None, :]
    if not SPLIT:
        acc = shares(acc, total, most, sinks, query_head, own, SINKS)
        to = out + (row * HQ + query_head)[:, None] * DV + e[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=stored)
    else:
        place = (row * HQ + query_head) * splits + split
        acc = shares(acc, total, most, sinks, query_head, own, False)
        tl.store(parts + place[:, None] * DV + e[None, :], acc, mask=stored)
        tl.store(sums + place, most + tl.log2(total), mask=own)
