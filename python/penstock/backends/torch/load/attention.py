"""Loads the weights of a layer's attention, grouped-query or latent."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.load.recipes import of_expert
from penstock.backends.torch.load.weights import (
    HeadWeights,
    LatentWeights,
    Loader,
    MixerWeights,
    Roles,
    needed,
)
from penstock.core import PenstockError
from penstock.model.spec import Attention, LatentAttention, Layer, Norm


def load_mixer(loader: Loader, index: int, layer: Layer, roles: Roles) -> MixerWeights:
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        projections: HeadWeights | LatentWeights = _latent(loader, mixer, roles)
        out, value = _own_columns(loader, mixer.heads, mixer.value_dim, 1, roles), mixer.value_dim
    elif isinstance(mixer, Attention) and _supported(mixer):
        projections = _heads(loader, mixer, roles)
        group, value = mixer.heads // mixer.kv_heads, mixer.head_dim
        out = _own_columns(loader, mixer.heads, value, group, roles)
    else:
        raise PenstockError(f"the torch backend has no {mixer.kind} attention of this form yet")
    adds_bias = isinstance(mixer, Attention) and mixer.out_bias and loader.shard.rank == 0
    out_bias, hidden = None, loader.spec.hidden
    if adds_bias:
        out_bias = loader.source.vector(needed(roles, "o_bias"), hidden).to(loader.source.dtype)
    return MixerWeights(
        spec=mixer,
        projections=projections,
        out=out,
        out_bias=out_bias,
        sinks=_sinks(loader, mixer, roles),
        rotation=loader.ropes.index(mixer.rope) if mixer.rope else None,
        kv_group=_group_of(loader, index),
        kv_index=loader.kv_groups[_group_of(loader, index)].layers.index(index),
    )


def _supported(mixer: Attention) -> bool:
    return not mixer.gate and mixer.value_dim in (None, mixer.head_dim)


def _group_of(loader: Loader, index: int) -> int:
    return next(g for g, group in enumerate(loader.kv_groups) if index in group.layers)


def _span(heads: range, size: int) -> range:
    return range(heads.start * size, heads.stop * size)


def _heads(loader: Loader, a: Attention, roles: Roles) -> HeadWeights:
    shard, source, d = loader.shard, loader.source, a.head_dim
    group = a.heads // a.kv_heads
    kv = shard.kv_heads(group)
    hq, hk, lead = len(kv) * group, len(kv), shard.heads.start - kv.start * group
    own, kv_rows = _span(shard.heads, d), _span(kv, d)
    qkv = loader.zeros((hq + 2 * hk) * d, loader.spec.hidden)
    bias = torch.zeros(len(qkv), device=source.device) if a.qkv_bias else None
    parts = (
        ("q", a.heads * d, own, lead * d),
        ("k", a.kv_heads * d, kv_rows, hq * d),
        ("v", a.kv_heads * d, kv_rows, (hq + hk) * d),
    )
    for role, n, rows, at in parts:
        source.fill(qkv[at : at + len(rows)], needed(roles, role), n, loader.spec.hidden, rows)
        if bias is not None:
            whole = source.vector(needed(roles, f"{role}_bias"), n)
            bias[at : at + len(rows)] = whole[rows.start : rows.stop]
    q_norm, k_norm, eps = _head_norms(loader, a, roles)
    return HeadWeights(qkv, bias, hq, hk, d, q_norm, k_norm, eps, a.qk_norm_after is not None)


def _head_norms(
    loader: Loader, a: Attention, roles: Roles
) -> tuple[Tensor | None, Tensor | None, float]:
    if a.qk_norm_after is not None:
        ones = torch.ones(a.head_dim, device=loader.source.device)
        return ones, ones, a.qk_norm_after
    if a.qk_norm is None:
        return None, None, 0.0
    if a.qk_norm.kind != "rms" or a.qk_norm.bias:
        raise PenstockError("the torch backend has no query and key norm that is not plain RMS")
    q, k = (loader.norm(a.qk_norm, roles, role, a.head_dim) for role in ("q_norm", "k_norm"))
    return q.weight, k.weight, q.eps


def _own_columns(loader: Loader, heads: int, value: int, group: int, roles: Roles) -> Tensor:
    """Output projection [hidden, columns of the heads that this rank computes]. To complete a group
    of query heads, these may include heads of another rank; the columns of such heads are zero.
    """
    shard, hidden = loader.shard, loader.spec.hidden
    kv = shard.kv_heads(group)
    own = _span(shard.heads, value)
    wanted = (needed(roles, "o"), hidden, heads * value)
    if len(kv) * group == len(shard.heads):
        return loader.source.matrix(*wanted, cols=own)
    out = loader.zeros(hidden, len(kv) * group * value)
    lead = (shard.heads.start - kv.start * group) * value
    loader.source.fill(out[:, lead : lead + len(own)], *wanted, cols=own)
    return out


def _sinks(loader: Loader, mixer: Attention | LatentAttention, roles: Roles) -> Tensor | None:
    if isinstance(mixer, LatentAttention) or not mixer.sinks:
        return None
    group, shard = mixer.heads // mixer.kv_heads, loader.shard
    kv = shard.kv_heads(group)
    sinks = loader.source.vector(needed(roles, "sinks"), mixer.heads)
    return sinks[kv.start * group : kv.stop * group].contiguous()


def _latent(loader: Loader, a: LatentAttention, roles: Roles) -> LatentWeights:
    own, head = loader.shard.heads, a.plain_dim + a.rope_dim
    queries = (needed(roles, "q"), a.heads * head, _span(own, head))
    kv = a.kv_rank + a.rope_dim
    latent = (needed(roles, "kv_a"), kv, range(kv))
    norm = Norm(a.norm.kind, a.norm.eps, a.norm.bias, a.norm.unit_offset)
    if norm.kind != "rms" or norm.bias:
        raise PenstockError("the torch backend has no norm of the latent that is not plain RMS")
    query_norm = query_up = None
    first = queries
    if a.query_rank is not None:
        query_norm = loader.norm(norm, roles, "q_a_norm", a.query_rank)
        query_up = loader.fused([queries], a.query_rank)
        first = (needed(roles, "q_a"), a.query_rank, range(a.query_rank))
    k_b, v_b = _absorbed(loader, a, roles)
    return LatentWeights(
        down=loader.fused([first, latent], loader.spec.hidden),
        query_norm=query_norm,
        query_up=query_up,
        norm=loader.norm(norm, roles, "kv_a_norm", a.kv_rank),
        k_b=k_b,
        v_b=v_b,
    )


def _absorbed(loader: Loader, a: LatentAttention, roles: Roles) -> tuple[Tensor, Tensor]:
    """Absorbed matrices of this rank's heads: `k_b` maps a head's query to the latent space, `v_b`
    maps the latent space to the head's value.
    """
    own, source = loader.shard.heads, loader.source
    if "kv_b" in roles:
        each = a.plain_dim + a.value_dim
        rows = _span(own, each)
        made = source.matrix(roles["kv_b"], a.heads * each, a.kv_rank, rows)
        source.settle()
        keys, values = made.view(len(own), each, a.kv_rank).split([a.plain_dim, a.value_dim], 1)
        return keys.contiguous(), values.mT.contiguous()
    k_b = loader.empty(len(own), a.plain_dim, a.kv_rank)
    v_b = loader.empty(len(own), a.kv_rank, a.value_dim)
    for at, head in enumerate(own):
        for role, target in (("k_b", k_b[at].T), ("v_b", v_b[at].T)):
            source.fill(target, of_expert(needed(roles, role), head), *target.shape)
    return k_b, v_b
