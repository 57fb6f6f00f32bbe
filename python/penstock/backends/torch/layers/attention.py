"""Attention of one layer over the KV pool."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.inputs import Inputs
from penstock.backends.torch.kernels import (
    Heads,
    Scoring,
    attend_decode,
    attend_latent,
    attend_prefill,
    rms_norm,
    rotate,
    rotate_and_store,
    store_latent,
)
from penstock.backends.torch.kv.pool import Pool
from penstock.backends.torch.layers.products import product
from penstock.backends.torch.load.rope import Rotation
from penstock.backends.torch.load.weights import HeadWeights, LatentWeights, MixerWeights
from penstock.model.spec import Attention, LatentAttention, Temperature


def attend_heads(
    mixer: MixerWeights,
    x: Tensor,
    inputs: Inputs,
    table: Tensor,
    places: Tensor,
    pool: Pool,
    at: Rotation | None,
) -> Tensor:
    """Grouped-query attention of a layer for the rows `x` [rows, hidden]: [rows, heads * dim]."""
    a, own = mixer.spec, mixer.projections
    assert isinstance(a, Attention)
    assert isinstance(own, HeadWeights)
    k, v = pool.keys_and_values(mixer.kv_index)
    heads = Heads(
        own.hq, own.hk, own.d, own.q_norm, own.k_norm, own.norm_eps, own.norm_after, own.bias
    )
    cos, sin = (None, None) if at is None else (at.cos, at.sin)
    factors = None if a.temperature is None else _factors(a.temperature, inputs.positions)
    qkv = product(x, own.qkv)
    q = rotate_and_store(qkv, heads, inputs.positions, cos, sin, places, k, v, factors)
    if inputs.planned is not None:
        return inputs.planned.attend(mixer, q, k, v).flatten(1)
    scoring = Scoring(
        scale=own.d**-0.5 if a.scale is None else a.scale,
        window=a.window or 0,
        chunk=0 if a.window else a.chunk or 0,
        softcap=a.softcap or 0.0,
        sinks=mixer.sinks,
    )
    n, spans = inputs.decodes, inputs.spans
    decodes = (q, k, v, table[:n], inputs.lengths[:n], scoring)
    if spans is None:
        return attend_decode(*decodes).flatten(1)
    # Padding rows must be zero: no kernel writes them.
    made = torch.empty if spans.singles is None else torch.zeros
    out = made(*q.shape[:2], v.shape[-1], dtype=q.dtype, device=q.device)
    if n:
        attend_decode(*decodes, count=spans.singles, out=out)
    # Skip the one-row sequences (decodes): by the count on the device, or by slicing here.
    first = 0 if spans.singles is not None else n
    rest = (table[first:], inputs.starts[first:], spans, scoring)
    return attend_prefill(q, k, v, *rest, max_rows=inputs.most_rows, out=out).flatten(1)


def _factors(temperature: Temperature, positions: Tensor) -> Tensor:
    """Factors [rows] that scale the queries by position (attention temperature, Llama 4)."""
    steps = torch.floor((positions.float() + 1.0) / temperature.floor)
    return torch.log1p(steps) * temperature.scale + 1.0


def attend_latent_rows(
    mixer: MixerWeights,
    x: Tensor,
    inputs: Inputs,
    table: Tensor,
    places: Tensor,
    pool: Pool,
    at: Rotation | None,
) -> Tensor:
    """Absorbed latent attention (MLA) of a layer for the rows `x` [rows, hidden]: [rows, heads *
    value].

    `k_b` projects each query head into the latent space, attention runs over the cached latents,
    and `v_b` projects the weighted sum of latents to a value.
    """
    a, own, rows = mixer.spec, mixer.projections, len(x)
    assert isinstance(a, LatentAttention)
    assert isinstance(own, LatentWeights)
    assert at is not None, "latent attention without rotation"
    kept = a.kv_rank + a.rope_dim
    down = product(x, own.down)
    queries, latents = down.split([down.shape[1] - kept, kept], dim=1)
    if own.query_norm is not None and own.query_up is not None:
        queries, _ = rms_norm(queries, own.query_norm.weight, own.query_norm.eps)
        queries = product(queries, own.query_up)
    view = pool.latents(mixer.kv_index)
    norm = own.norm
    store_latent(latents, norm.weight, norm.eps, inputs.positions, at.cos, at.sin, places, view)
    heads = queries.reshape(rows, -1, a.plain_dim + a.rope_dim)
    plain, turned = heads.split([a.plain_dim, a.rope_dim], dim=2)
    q = x.new_empty(rows, heads.shape[1], kept)
    absorbed, rotated = q.split([a.kv_rank, a.rope_dim], dim=2)
    torch.bmm(plain.transpose(0, 1), own.k_b, out=absorbed.transpose(0, 1))
    rotate(turned, inputs.positions, at.cos, at.sin, rotated)
    context = attend_latent(
        q,
        view,
        table,
        inputs.positions,
        inputs.sequences,
        value_width=a.kv_rank,
        scale=(a.plain_dim + a.rope_dim) ** -0.5 if a.scale is None else a.scale,
    )
    out = x.new_empty(rows, heads.shape[1], a.value_dim)
    torch.bmm(context.transpose(0, 1), own.v_b, out=out.transpose(0, 1))
    return out.flatten(1)
