"""Prefill attention: several rows per sequence, for prompt chunks and drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    jit,
    jit_with_varying,
    launches,
    power,
    shared_memory,
    tl,
)


@dataclass(frozen=True, slots=True)
class Spans:
    """Row ranges of the sequences in a step."""

    offsets: Tensor
    """[sequences + 1] int32: sequence s has rows `offsets[s]` to `offsets[s + 1]`."""
    singles: Tensor | None = None
    """[1] int32, on the device: number of one-row sequences at the beginning, which are skipped.
    None: none are skipped.
    """
    _tiles: dict[int, Tensor] = field(default_factory=dict)

    def tiles(self, size: int, rows: int) -> Tensor:
        """Tiles of `size` rows for at most `rows` rows: [2, tiles] int32, the sequence of each tile
        (-1 if unused) and its index within the sequence. The last rows attend to the most tokens,
        so their tiles come first. Computed once for all layers of a step.
        """
        if size not in self._tiles:
            self._tiles[size] = self._found(size, rows)
        return self._tiles[size]

    def _found(self, size: int, rows: int) -> Tensor:
        sequences, device = len(self.offsets) - 1, self.offsets.device
        each = (self.offsets.diff() + (size - 1)) // size
        if self.singles is not None:
            own = torch.arange(sequences, dtype=torch.int32, device=device)
            each = each.masked_fill_(own < self.singles, 0)
        ends = each.cumsum(0, dtype=torch.int32)
        # One tile per full tile of rows, and at most one partial tile per sequence.
        count = rows // size + min(sequences, rows)
        tile = torch.arange(count, dtype=torch.int32, device=device)
        of = torch.searchsorted(ends, tile, right=True, out_int32=True)
        last = ends.index_select(0, of.clamp(max=sequences - 1)) - 1
        return torch.stack([of.masked_fill_(of == sequences, -1), last - tile])


def attend_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    starts: Tensor,
    spans: Spans,
    scoring: Scoring,
    *,
    max_rows: int,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of all rows of each sequence: [rows, hq, value width].

    `spans`: row ranges in `q` [rows, hq, d]. A sequence's rows are at the positions from `starts`
    [sequences] on, at most `max_rows` of them. For the other arguments see `attend_decode`; the
    rows' own keys are already in the pool. If `out` is given, only these rows are written;
    otherwise the other rows are zeros.
    """
    compute = attend_prefill_triton if launches(q) else attend_prefill_reference
    return compute(q, k, v, tables, starts, spans, scoring, max_rows=max_rows, out=out)


def attend_prefill_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    starts: Tensor,
    spans: Spans,
    scoring: Scoring,
    *,
    max_rows: int,
    out: Tensor | None = None,
) -> Tensor:
    if out is None:
        out = q.new_zeros(*q.shape[:2], v.shape[-1])
    left_out = 0 if spans.singles is None else int(spans.singles)
    offsets = spans.offsets[left_out:].long()
    sequences = torch.arange(left_out, len(starts), device=q.device)
    sequences = torch.repeat_interleave(sequences, offsets.diff())
    own = torch.arange(len(sequences), device=q.device) + offsets[0]
    positions = starts.long()[sequences] + own - spans.offsets.long()[sequences]
    out[own] = attend_reference(q[own], k, v, tables, positions, sequences, scoring)
    return out


def attend_prefill_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    starts: Tensor,
    spans: Spans,
    scoring: Scoring,
    *,
    max_rows: int,
    out: Tensor | None = None,
) -> Tensor:
    (rows, hq, d), (_, hk, tokens, dv) = q.shape, v.shape
    if out is None:
        # Padding rows belong to no sequence, so they must be zero.
        out = torch.zeros(rows, hq, dv, dtype=q.dtype, device=q.device)
    if rows == 0 or max_rows == 0:
        return out
    room = shared_memory(q.device)
    sizes = prefill_sizes(hq // hk, d, dv, q.element_size(), max_rows, room)
    tiles = spans.tiles(sizes["BLOCK_M"] // (hq // hk), rows)
    _attend_prefill[(tiles.shape[1], hk)](
        *(q, k, v, tables, starts, spans.offsets, tiles),
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
    """Tile sizes of a program: a number of rows with `group` query heads each, and of tokens. The
    arguments are the same as for `decode_sizes`. Five pipeline stages, as there, take 128 KiB on
    compute capability 9.0 and 10.0.
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


@jit
def earliest(position, end, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first token that any of the rows at positions `position` to `end` attends to, and the
    first token that all of them attend to.
    """
    first, inner = 0, 0
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0)
        inner = end - WINDOW
    if CHUNK > 0:
        first = position // CHUNK * CHUNK
        inner = tl.maximum(inner, (end - 1) // CHUNK * CHUNK)
    return first, inner


@jit
def masked(scores, token, position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Scores, with minus infinity for tokens that a row does not attend to. The last row attends to
    the last token, so tokens after it need no separate mask.
    """
    seen = token[None, :] <= position[:, None]
    if WINDOW > 0:
        seen = seen & (token[None, :] > position[:, None] - WINDOW)
    if CHUNK > 0:
        seen = seen & (token[None, :] // CHUNK == position[:, None] // CHUNK)
    return tl.where(seen, scores, float("-inf"))


@jit_with_varying("tables", "starts", "offsets", "stride_table")
def _attend_prefill(
    q,
    k,
    v,
    tables,
    starts,
    offsets,
    tiles,
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
    head, sequence = tl.program_id(1), tl.load(tiles + tl.program_id(0))
    if sequence >= 0:
        tile = tl.load(tiles + tl.num_programs(0) + tl.program_id(0))
        begin = tl.load(offsets + sequence)
        rows = tl.load(offsets + sequence + 1) - begin
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
        first, inner = earliest(start + tile * ROWS, end, WINDOW, CHUNK)
        # All rows attend to the tokens from `inner` to `clear`, so these need no mask.
        clear = start + tile * ROWS + 1
        LATE: tl.constexpr = WINDOW > 0 or CHUNK > 0
        most = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        # Software pipelining: each loop step multiplies the values of the previous tile. On 9.0 the
        # tensor cores then work while the weights of this tile are computed. The loop has one step
        # more than there are tiles.
        weights = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        factor = tl.zeros([BLOCK_M], tl.float32)
        table = tables + sequence.to(tl.int64) * stride_table
        for at in range(first // BLOCK_N * BLOCK_N, end + BLOCK_N, BLOCK_N):
            token = at + n
            block, offset = places(table, at, end, TOKENS, BLOCK_N, first if LATE else None)
            from_k = k + head * stride_kh + block * stride_kb + offset * stride_kt
            # Keys beyond the end need no mask, because their scores are replaced.
            keys = tl.load(from_k[None, :] + d[:, None], mask=(d < D)[:, None], other=0.0)
            before = at - BLOCK_N
            known = (before - first + n).to(tl.uint32) < (end - first).to(tl.uint32)
            block, offset = places(
                table, tl.maximum(before, 0), end, TOKENS, BLOCK_N, first if LATE else None
            )
            from_v = v + head * stride_vh + block * stride_vb + offset * stride_vt
            # Mask unused rows, because NaN times a weight of zero is NaN.
            values = tl.load(
                from_v[:, None] + e[None, :], mask=known[:, None] & (e < DV)[None, :], other=0.0
            )
            scores = tl.dot(queries, keys.to(queries.dtype), input_precision="ieee")
            acc = acc * factor[:, None]
            acc = tl.dot(
                weights.to(queries.dtype), values.to(queries.dtype), acc, input_precision="ieee"
            )
            if SOFTCAP:
                scores = capped(scores, softcap)
            if (at < inner) | (at + BLOCK_N > clear):
                scores = masked(scores, token, position, WINDOW, CHUNK)
            most, weights, factor = weigh(scores, scale, most)
            total = total * factor + tl.sum(weights, 1)
        acc = shares(acc, total, most, sinks, query_head, own, SINKS)
        to = out + (place * HQ + query_head)[:, None] * DV + e[None, :]
        tl.store(to, acc.to(out.dtype.element_ty), mask=own[:, None] & (e < DV)[None, :])
