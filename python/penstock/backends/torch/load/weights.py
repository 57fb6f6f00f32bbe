"""Weights of one rank on its device, fused and sharded according to `Shard`.

Matrices with the same inputs are fused into one tensor. A rank computes whole groups of query
heads, where a group shares a KV head. The rows and columns of query heads that belong to another
rank are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from penstock.backends.torch.kernels import Activation, Matrix, Rule
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.load.rope import Rotation
from penstock.backends.torch.load.widening import Widening
from penstock.backends.torch.shard import Shard
from penstock.core import PenstockError
from penstock.model.kv_groups import KvLayers, kv_groups
from penstock.model.spec import CachedAttention, DecoderSpec, Norm, Recipe, WeightRecipes

Roles = dict[str, Recipe]


@dataclass(frozen=True, slots=True)
class NormWeights:
    weight: Tensor
    """f32; for norms that multiply by 1 + weight, the 1 is already added."""
    bias: Tensor | None
    eps: float
    kind: str


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Projections of grouped-query attention."""

    qkv: Tensor
    """[(hq + 2 hk) * d, hidden]."""
    bias: Tensor | None
    hq: int
    hk: int
    d: int
    q_norm: Tensor | None
    k_norm: Tensor | None
    norm_eps: float
    norm_after: bool


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Projections of latent attention, with each head's matrices to and from the latent space."""

    down: Tensor
    """[query width or query rank + kv_rank + rope_dim, hidden]."""
    query_norm: NormWeights | None
    query_up: Tensor | None
    """[heads * (plain + rope), rank]."""
    norm: NormWeights
    k_b: Tensor
    """[heads, plain, kv_rank]."""
    v_b: Tensor
    """[heads, kv_rank, value]."""


@dataclass(frozen=True, slots=True)
class MixerWeights:
    spec: CachedAttention
    projections: HeadWeights | LatentWeights
    out: Tensor
    """[hidden, heads * value]."""
    out_bias: Tensor | None
    sinks: Tensor | None
    rotation: int | None
    """Index into `Weights.rotations`."""
    kv_group: int
    kv_index: int
    """Index of the layer among this rank's layers of the KV group."""


@dataclass(frozen=True, slots=True)
class MlpWeights:
    inner: Matrix
    """Gate and up fused, gate first; or up alone if the feed-forward is not gated."""
    gated: bool
    activation: Activation
    down: Matrix


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    router: Tensor
    """[experts, hidden], in f32, or in the activation type if the conversion is exact. The last row
    is the gate of the shared expert, if it has one."""
    router_bias: Tensor | None
    rule: Rule
    chosen: int
    correction: Tensor | None
    inner: Matrix
    down: Matrix
    activation: Activation
    own: range
    """Experts that this rank holds."""
    weight_on_input: bool
    shared: MlpWeights | None
    shared_gate: bool
    widening: Widening | None
    """Widening of the experts' codes; None unless the matrices are quantised and the model is
    bfloat16.
    """


@dataclass(frozen=True, slots=True)
class LayerWeights:
    mixer_norm: NormWeights
    mixer: MixerWeights
    mixer_after: NormWeights | None
    feed_forward_norm: NormWeights
    feed_forward: MlpWeights | MixtureWeights
    feed_forward_after: NormWeights | None


@dataclass(frozen=True, slots=True)
class Weights:
    layers: tuple[LayerWeights, ...]
    rotations: tuple[Rotation, ...]
    kv_groups: tuple[KvLayers, ...]
    embed: Tensor | None
    positions: Tensor | None
    head: Tensor | None
    final_norm: NormWeights
    score: Tensor | None
    """Classification head in f32."""


class Loader:
    """Loads a rank's weights by role (such as "q" or "down"). Raises PenstockError, which names a
    missing tensor or an unsupported feature.
    """

    def __init__(self, source: Source, spec: DecoderSpec, shard: Shard) -> None:
        self.source = source
        self.spec = spec
        self.shard = shard
        self.kv_groups = kv_groups(spec, shard.layers)
        self.ropes = tuple(
            dict.fromkeys(
                layer.mixer.rope
                for layer in spec.layers
                if isinstance(layer.mixer, CachedAttention) and layer.mixer.rope
            )
        )
        self.widening = Widening()

    def norm(self, norm: Norm, roles: Roles, role: str, n: int) -> NormWeights:
        weight = self.source.vector(needed(roles, role), n)
        bias = self.source.vector(needed(roles, f"{role}_bias"), n) if norm.bias else None
        return NormWeights(weight + 1.0 if norm.unit_offset else weight, bias, norm.eps, norm.kind)

    def fused(self, parts: list[tuple[Recipe, int, range]], k: int) -> Tensor:
        """Fuse this rank's rows of matrices with the same `k` inputs into one matrix [rows, k].
        Each part: recipe, number of rows of the whole matrix, and this rank's rows.
        """
        out = self.empty(sum(len(rows) for _, _, rows in parts), k)
        at = 0
        for recipe, n, rows in parts:
            self.source.fill(out[at : at + len(rows)], recipe, n, k, rows)
            at += len(rows)
        return out

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.source.dtype, device=self.source.device)

    def zeros(self, *shape: int) -> Tensor:
        return self.empty(*shape).zero_()


def tensors_of(weights: object) -> Iterator[Tensor]:
    """All tensors in `weights`, a dataclass of this module, and in the dataclasses and tuples
    within it.
    """
    if isinstance(weights, Tensor):
        yield weights
    elif isinstance(weights, tuple):
        for each in weights:
            yield from tensors_of(each)
    elif is_dataclass(weights):
        for own in fields(weights):
            yield from tensors_of(getattr(weights, own.name))


def needed(roles: Roles, role: str) -> Recipe:
    if role not in roles:
        raise PenstockError(f"the spec needs a weight recipe for {role!r}")
    return roles[role]


def top_roles(recipes: WeightRecipes) -> Roles:
    """The recipes of weights outside the layers, such as embedding and head, by role."""
    named = {
        "embed": recipes.embed,
        "final_norm": recipes.final_norm,
        "final_norm_bias": recipes.final_norm_bias,
        "positions": recipes.positions,
        "head": recipes.head,
        "score": recipes.score,
        "rope_factors": recipes.rope_factors,
    }
    return {role: recipe for role, recipe in named.items() if recipe is not None}
