"""Attention over a paged KV pool: the helpers that the decode, prefill and latent kernels share,
and their reference in torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import jit, tl


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer turns scores into attention weights."""

    scale: float
    """Factor by which the query-key products are multiplied."""
    window: int = 0
    """Tokens that a token attends to, including itself; 0: all."""
    chunk: int = 0
    """A token attends only to tokens of its own chunk of this size; 0: all."""
    softcap: float = 0.0
    """`c` of `c * tanh(score / c)`; 0: no soft cap."""
    sinks: Tensor | None = None
    """[hq] f32: an extra logit per query head, which takes part in the softmax without a value."""

    def in_powers(self) -> tuple[float, float]:
        """Scale and soft cap as kernel arguments. The kernels compute powers of two, so the scale
        is multiplied by log2(e). They apply the soft cap to unscaled scores, so the cap is divided
        by the scale.
        """
        return self.scale * math.log2(math.e), self.softcap / self.scale


def attend_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    positions: Tensor,
    sequences: Tensor,
    scoring: Scoring,
) -> Tensor:
    """Attention of rows `q` [rows, hq, d], where row i is at `positions[i]` of sequence
    `sequences[i]`, over all tokens up to and including the row's: [rows, hq, value width].

    `k` and `v` are views [blocks, hk, tokens, width] of a layer; block n of sequence s is
    `tables[s, n]`. A row at a negative position attends to nothing and gets zeros. Entries beyond
    that may be arbitrary: NaN in the pool, block indices out of range.
    """
    out = q.new_zeros(*q.shape[:2], v.shape[-1])
    for sequence in sequences.unique().tolist():
        rows = (sequences == sequence).nonzero().flatten()
        at = positions[rows].long()
        length = int(at.max()) + 1
        if length < 1:
            continue
        seen = visible(at, length, scoring)
        keys = _gather(k, tables[sequence], length)
        # Values of masked tokens must be zero, because NaN times a weight of zero is NaN.
        values = _gather(v, tables[sequence], length)
        values = values.masked_fill(~seen.any(0).view(-1, 1, 1), 0.0)
        weights = _weights(q[rows], keys, seen, scoring)
        attended = torch.einsum("rhgl,lhd->rhgd", weights, values)
        out[rows] = attended.flatten(1, 2).to(q.dtype)
    return out


def visible(positions: Tensor, length: int, scoring: Scoring) -> Tensor:
    """Attention mask [rows, length]: True if the row at a position attends to a token."""
    own, token = positions.unsqueeze(1), torch.arange(length, device=positions.device)
    seen = token <= own
    if scoring.window:
        seen &= token > own - scoring.window
    if scoring.chunk:
        seen &= token >= own // scoring.chunk * scoring.chunk
    return seen


def _gather(pool: Tensor, table: Tensor, length: int) -> Tensor:
    """Keys or values of a sequence's first `length` tokens, [length, heads, width] in f32."""
    tokens = pool.shape[2]
    blocks = table[: -(-length // tokens)].long().clamp(0, len(pool) - 1)
    return pool[blocks].transpose(1, 2).flatten(0, 1)[:length].float()


def _weights(q: Tensor, keys: Tensor, seen: Tensor, scoring: Scoring) -> Tensor:
    """Attention weights after the softmax [rows, hk, query heads per KV head, length]."""
    rows, kv_heads = len(q), keys.shape[1]
    grouped = q.float().view(rows, kv_heads, -1, q.shape[2])
    scores = torch.einsum("rhgd,lhd->rhgl", grouped, keys) * scoring.scale
    if scoring.softcap:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    scores = scores.masked_fill(~seen.view(rows, 1, 1, -1), -torch.inf)
    if scoring.sinks is not None:
        sink = scoring.sinks.float().view(1, kv_heads, -1, 1).expand(rows, -1, -1, 1)
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    # A row that attends to nothing has NaN weights; replace them by zero.
    return torch.softmax(scores, -1).masked_fill(~seen.view(rows, 1, 1, -1), 0.0)


@jit
def places(table, at, end, TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, first=None):
    """For each token of the tile that begins at token `at`: its block, and its offset in the block.
    Each block is looked up once. A lookup per token would need many address computations, a third
    of a tile's instructions.

    Blocks that end at or before `first` (if given), or begin at `end` or later, are not looked up.
    Block 0 is used in their place, which is safe to read.
    """
    tl.static_assert(max(TOKENS, BLOCK_N) % min(TOKENS, BLOCK_N) == 0)
    n = tl.arange(0, BLOCK_N)
    # Unsigned division and multiplication take fewer instructions.
    own = table + tl.cast(at, tl.uint32) // TOKENS
    known = at < end
    if first is not None:
        known = known & (at + min(TOKENS, BLOCK_N) > first)
    block = tl.load(own, mask=known, other=0)
    if TOKENS % BLOCK_N == 0:
        return block.to(tl.uint32).to(tl.int64), (tl.cast(at, tl.uint32) % TOKENS).to(tl.int32) + n
    for i in tl.static_range(1, BLOCK_N // TOKENS):
        known = at + i * TOKENS < end
        if first is not None:
            known = known & (at + i * TOKENS + TOKENS > first)
        other = tl.load(own + i, mask=known, other=0)
        block = tl.where(n // TOKENS == i, other, block)
    return block.to(tl.uint32).to(tl.int64), n % TOKENS


@jit
def capped(scores, softcap):
    """`softcap * tanh(scores / softcap)`."""
    return softcap - 2.0 * softcap / (1.0 + tl.exp(2.0 * scores / softcap))


@jit
def weigh(scores, scale, most):
    """One tile of an online softmax in base 2. Returns the new maximum logit, the weights of this
    tile, and the factor that corrects the sums of earlier tiles. The scale is applied with one
    fused multiply-add.
    """
    new = tl.maximum(most, tl.max(scores, 1) * scale)
    # In the first tiles a row may have no token to attend to.
    base = tl.where(new == float("-inf"), 0.0, new)
    return new, tl.exp2(scores * scale - base[:, None]), tl.exp2(most - base)


@jit
def shares(acc, total, most, sinks, heads, own, SINKS: tl.constexpr):
    """Normalise the attention output: the weighted sums of values (`acc`), divided by the total
    weight, which includes the sink's. Rows that attend to nothing get zeros.
    """
    if SINKS:
        sink = tl.load(sinks + heads, mask=own, other=0.0).to(tl.float32) * 1.4426950408889634
        new = tl.maximum(most, sink)
        factor = tl.exp2(most - new)
        total = total * factor + tl.exp2(sink - new)
        acc = acc * factor[:, None]
    return acc / tl.where(total > 0, total, 1.0)[:, None]
