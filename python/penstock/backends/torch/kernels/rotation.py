"""The operations between the QKV projection and attention: bias, head norms, rotation, and the
store of keys and values into the KV pool.

Rotated pairs are half-split: element i rotates with element i + half, where half is the number of
pairs. `slots` has the destination of each row: block * block size + offset in the block, or -1 for
a row that is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import jit, jit_with_varying, launches, power, tl


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers of a layer's heads on this rank, and the operations on heads before attention."""

    hq: int
    hk: int
    d: int
    """Elements of each query and key head."""
    q_norm: Tensor | None = None
    """[d] f32: weight of an RMS norm of each query head; set together with `k_norm` or not at
    all.
    """
    k_norm: Tensor | None = None
    eps: float = 0.0
    norm_after: bool = False
    """True if the norms follow the rotation (Llama 4)."""
    bias: Tensor | None = None
    """[(hq + hk) * d + hk * value width], added to the projections before the norms and the
    rotation.
    """


def rotate_and_store(
    qkv: Tensor,
    heads: Heads,
    positions: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None = None,
) -> Tensor:
    """Apply bias, norms and rotation to `qkv`. Returns the queries [rows, hq, d] in the type of
    `qkv`, and stores the keys and values into the pool.

    `qkv` [rows, (hq + hk) * d + hk * value width]: queries, keys and values side by side. `k` and
    `v`: a layer's views [blocks, hk, tokens, width]. `cos` and `sin` [positions, half] f32: the
    first 2 * half elements of a head are rotated; None: none are. `factors` [rows] f32: multiplies
    each row's queries, after norm and rotation.
    """
    compute = rotate_and_store_triton if launches(qkv) else rotate_and_store_reference
    return compute(qkv, heads, positions, cos, sin, slots, k, v, factors)


def rotate_and_store_reference(
    qkv: Tensor,
    heads: Heads,
    positions: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None = None,
) -> Tensor:
    rows, wide = len(qkv), qkv.float()
    hq, hk, d = heads.hq, heads.hk, heads.d
    if heads.bias is not None:
        wide = wide + heads.bias.float()
    turned, values = wide.split([(hq + hk) * d, hk * v.shape[-1]], dim=1)
    turned = turned.view(rows, hq + hk, d)
    if not heads.norm_after:
        turned = _norm_heads(turned, heads)
    if cos is not None and sin is not None:
        turned = rotated(turned, positions, cos, sin)
    if heads.norm_after:
        turned = _norm_heads(turned, heads)
    queries, keys = turned.split([hq, hk], dim=1)
    if factors is not None:
        queries = queries * factors.view(rows, 1, 1)
    store(keys, slots, k)
    store(values.view(rows, hk, -1), slots, v)
    return queries.to(qkv.dtype).contiguous()


def _norm_heads(turned: Tensor, heads: Heads) -> Tensor:
    if heads.q_norm is None or heads.k_norm is None:
        return turned
    queries, keys = heads.q_norm.expand(heads.hq, -1), heads.k_norm.expand(heads.hk, -1)
    return _norm(turned, heads.eps) * torch.cat([queries, keys]).float()


def rotate(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Write `x` [rows, heads, width] to `out`, with the first 2 * half elements of each head
    rotated. Both tensors may have strided heads.
    """
    compute = rotate_triton if launches(x) else rotate_reference
    compute(x, positions, cos, sin, out)


def rotate_reference(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    out.copy_(rotated(x, positions, cos, sin))


def rotated(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half, index = cos.shape[1], positions.long()
    c, s = cos[index].unsqueeze(1).float(), sin[index].unsqueeze(1).float()
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    turned = torch.cat([a * c - b * s, b * c + a * s, x[..., 2 * half :].float()], dim=-1)
    return turned.to(x.dtype)


def store_latent(
    latents: Tensor,
    weight: Tensor,
    eps: float,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool: Tensor,
) -> None:
    """Store latents [rows, rank + rope] into a layer's view `pool` [blocks, tokens, rank + rope].
    The first `rank` elements are normalised with `weight` [rank] f32, the others are rotated.
    """
    compute = store_latent_triton if launches(latents) else store_latent_reference
    compute(latents, weight, eps, positions, cos, sin, slots, pool)


def store_latent_reference(
    latents: Tensor,
    weight: Tensor,
    eps: float,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool: Tensor,
) -> None:
    rank, wide = len(weight), latents.float().unsqueeze(1)
    normed = _norm(wide[..., :rank], eps) * weight.float()
    turned = rotated(wide[..., rank:], positions, cos, sin)
    store(torch.cat([normed, turned], dim=-1), slots, pool.unsqueeze(1))


def store(rows: Tensor, slots: Tensor, pool: Tensor) -> None:
    """Store rows [rows, heads, width] at `slots` [rows] of `pool` [blocks, heads, tokens,
    width].
    """
    stored, tokens = slots >= 0, pool.shape[2]
    index = slots[stored].long()
    pool[index // tokens, :, index % tokens] = rows[stored].to(pool.dtype)


def _norm(heads: Tensor, eps: float) -> Tensor:
    return heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)


def rotate_and_store_triton(
    qkv: Tensor,
    heads: Heads,
    positions: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor | None = None,
) -> Tensor:
    hq, hk, d, dv = heads.hq, heads.hk, heads.d, v.shape[-1]
    queries = torch.empty(len(qkv), hq, d, dtype=qkv.dtype, device=qkv.device)
    norm = "" if heads.q_norm is None else "after" if heads.norm_after else "before"
    if len(qkv):
        # For an absent tensor, pass the pointer of another tensor; the kernel does not read it.
        _rotate[(len(qkv), hq + 2 * hk)](
            qkv,
            qkv if heads.bias is None else heads.bias,
            qkv if heads.q_norm is None else heads.q_norm,
            qkv if heads.k_norm is None else heads.k_norm,
            positions,
            qkv if cos is None else cos,
            qkv if sin is None else sin,
            slots,
            qkv if factors is None else factors,
            queries,
            k,
            v,
            qkv.stride(0),
            d,
            *queries.stride()[:2],
            *k.stride()[:3],
            *v.stride()[:3],
            heads.eps,
            HQ=hq,
            HK=hk,
            D=d,
            DV=dv,
            HALF=0 if cos is None else cos.shape[1],
            TOKENS=k.shape[2],
            NORM=norm,
            BIAS=heads.bias is not None,
            FACTORS=factors is not None,
            BLOCK=power(d),
            BLOCK_V=power(dv),
            num_warps=1,
        )
    return queries


def rotate_triton(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    rows, heads, d = x.shape
    if rows:
        _rotate[(rows, heads)](
            *(x, x, x, x, positions, cos, sin, positions, x, out, x, x),
            *(*x.stride()[:2], *out.stride()[:2], 0, 0, 0, 0, 0, 0, 0.0),
            HQ=heads,
            HK=0,
            D=d,
            DV=d,
            HALF=cos.shape[1],
            TOKENS=1,
            NORM="",
            BIAS=False,
            FACTORS=False,
            BLOCK=power(d),
            BLOCK_V=power(d),
            num_warps=1,
        )


@jit
def _pairs(first, at, own, HALF: tl.constexpr):
    """Elements of a head, and for each the other element of its rotated pair. An element that is
    not rotated is paired with itself.
    """
    pair = tl.where(at < HALF, at + HALF, tl.where(at < 2 * HALF, at - HALF, at))
    x = tl.load(first + at, mask=own, other=0.0).to(tl.float32)
    return x, tl.load(first + pair, mask=own, other=0.0).to(tl.float32)


@jit
def _weights(q_norm, k_norm, head, at, own, HQ: tl.constexpr, HALF: tl.constexpr):
    """Norm weights of a query or key head: the weight of each element, and the weight of the other
    element of its pair.
    """
    query, other_query = _pairs(q_norm, at, own, HALF)
    key, other_key = _pairs(k_norm, at, own, HALF)
    return tl.where(head < HQ, query, key), tl.where(head < HQ, other_query, other_key)


@jit
def _under(at, count: tl.constexpr, condition):
    """A mask of the first `count` elements, or of no element. Triton's interpreter cannot combine a
    block and a scalar condition.
    """
    return at < tl.where(condition, count, 0)


@jit
def _turned(x, y, position, cos, sin, at, HALF: tl.constexpr):
    angle = tl.load(position).to(tl.int64) * HALF + tl.where(at < HALF, at, at - HALF)
    c = tl.load(cos + angle, mask=at < 2 * HALF, other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=at < 2 * HALF, other=0.0).to(tl.float32)
    return x * c + tl.where(at < HALF, -y, y) * s


@jit_with_varying("positions", "slots")
def _rotate(
    qkv,
    bias,
    q_norm,
    k_norm,
    positions,
    cos,
    sin,
    slots,
    factors,
    queries,
    k,
    v,
    stride_row,
    stride_head,
    stride_qr,
    stride_qh,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_vb,
    stride_vh,
    stride_vt,
    eps,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    HALF: tl.constexpr,
    TOKENS: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    FACTORS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    block, offset = slot // TOKENS, slot % TOKENS
    if head < HQ + HK:
        at = tl.arange(0, BLOCK)
        own = at < D
        x, y = _pairs(qkv + row * stride_row + head * stride_head, at, own, HALF)
        if BIAS:
            added, other = _pairs(bias + head * D, at, own, HALF)
            x, y = x + added, y + other
        if NORM == "before":
            root = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
            weight, other = _weights(q_norm, k_norm, head, at, own, HQ, HALF)
            x, y = x * root * weight, y * root * other
        if HALF > 0:
            x = _turned(x, y, positions + row, cos, sin, at, HALF)
        if NORM == "after":
            weight, other = _weights(q_norm, k_norm, head, at, own, HQ, HALF)
            x = x * tl.rsqrt(tl.sum(x * x, 0) / D + eps) * weight
        if FACTORS:
            x *= tl.where(head < HQ, tl.load(factors + row).to(tl.float32), 1.0)
        first = queries + row * stride_qr + tl.minimum(head, HQ - 1) * stride_qh
        tl.store(first + at, x.to(queries.dtype.element_ty), mask=_under(at, D, head < HQ))
        place = block * stride_kb + tl.maximum(head - HQ, 0) * stride_kh + offset * stride_kt
        stored = _under(at, D, (head >= HQ) & (slot >= 0))
        tl.store(k + place + at, x.to(k.dtype.element_ty), mask=stored)
    else:
        number = head - HQ - HK
        e = tl.arange(0, BLOCK_V)
        has = e < DV
        start = (HQ + HK) * D + number * DV
        value = tl.load(qkv + row * stride_row + start + e, mask=has, other=0.0).to(tl.float32)
        if BIAS:
            value += tl.load(bias + start + e, mask=has, other=0.0).to(tl.float32)
        to = v + block * stride_vb + number * stride_vh + offset * stride_vt
        tl.store(to + e, value.to(v.dtype.element_ty), mask=_under(e, DV, slot >= 0))


def store_latent_triton(
    latents: Tensor,
    weight: Tensor,
    eps: float,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool: Tensor,
) -> None:
    rank = len(weight)
    if len(latents):
        _store_latent[(len(latents),)](
            *(latents, weight, positions, cos, sin, slots, pool),
            *(latents.stride(0), pool.stride(0), pool.stride(1), eps),
            RANK=rank,
            ROPE=latents.shape[1] - rank,
            HALF=cos.shape[1],
            TOKENS=pool.shape[1],
            BLOCK=power(rank),
            BLOCK_R=power(latents.shape[1] - rank),
            num_warps=4,
        )


@jit_with_varying("positions", "slots")
def _store_latent(
    latents,
    weight,
    positions,
    cos,
    sin,
    slots,
    pool,
    stride,
    stride_block,
    stride_token,
    eps,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    HALF: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    first = latents + row * stride
    to = pool + slot // TOKENS * stride_block + slot % TOKENS * stride_token
    at = tl.arange(0, BLOCK)
    own = at < RANK
    x = tl.load(first + at, mask=own, other=0.0).to(tl.float32)
    factor = tl.load(weight + at, mask=own, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / RANK + eps) * factor
    tl.store(to + at, x.to(pool.dtype.element_ty), mask=_under(at, RANK, slot >= 0))
    at = tl.arange(0, BLOCK_R)
    own = at < ROPE
    x, y = _pairs(first + RANK, at, own, HALF)
    x = _turned(x, y, positions + row, cos, sin, at, HALF)
    tl.store(to + RANK + at, x.to(pool.dtype.element_ty), mask=_under(at, ROPE, slot >= 0))
