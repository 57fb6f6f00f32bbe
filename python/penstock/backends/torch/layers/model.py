"""The forward pass of one step, top-down.

The order of operations is the same as in `crates/compute/decoder/src/forward.rs`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.inputs import Inputs
from penstock.backends.torch.kernels import find_rows, layer_norm, rms_norm
from penstock.backends.torch.kv.pool import Pool
from penstock.backends.torch.layers.attention import attend_heads, attend_latent_rows
from penstock.backends.torch.layers.feed_forward import feed_forward
from penstock.backends.torch.layers.products import product
from penstock.backends.torch.load.weights import (
    HeadWeights,
    LayerWeights,
    MixerWeights,
    NormWeights,
    Weights,
    tensors_of,
)
from penstock.backends.torch.ranks.ranks import Ranks
from penstock.backends.torch.shard import Shard
from penstock.model.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Model:
    """A rank's weights and pools, and its connections to the other ranks."""

    spec: DecoderSpec
    shard: Shard
    weights: Weights
    pools: tuple[Pool, ...]
    ranks: Ranks
    dtype: torch.dtype

    def forward(self, inputs: Inputs, tables: Tensor, last: Tensor) -> Tensor:
        """The residual stream [rows, hidden] after this rank's last layer.

        `tables` [sequences, KV groups, blocks]: block tables. `last` [slots]: the last token that
        each slot sampled.
        """
        rows = (inputs.tokens, inputs.positions, inputs.sequences, inputs.slots, inputs.lengths)
        tokens, places = find_rows(*rows, last, tables, self.pools[0].layout.block_size)
        x = self._first(inputs, tokens)
        branch: Tensor | None = None
        after: NormWeights | None = None
        for layer in self.weights.layers:
            group = layer.mixer.kv_group
            normed, x = norm(x, layer.mixer_norm, branch, after)
            # Drop the reference, so that the next tensors can reuse the memory: x already includes
            # the branch.
            del branch
            branch = self._attend(layer.mixer, normed, inputs, tables[:, group], places[group])
            normed, x = norm(x, layer.feed_forward_norm, branch, layer.mixer_after)
            del branch
            branch, after = self._feed_forward(layer, normed), layer.feed_forward_after
        if branch is not None:
            x = x + (branch if after is None else norm(branch, after)[0])
        self.ranks.send(x)
        return x

    def logits(self, x: Tensor) -> Tensor | None:
        """Logits [rows, vocabulary] in f32 for rows of the residual stream; None on ranks that do
        not sample.
        """
        logits = self.raw_logits(x)
        if logits is None:
            return None
        cap, logits = self.spec.final_softcap, logits.float()
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def raw_logits(self, x: Tensor) -> Tensor | None:
        """Logits before the soft cap, in the type of `x`."""
        head = self.weights.head
        assert head is not None
        normed, _ = norm(x, self.weights.final_norm)
        return self.ranks.gather(product(normed, head), self.shard)

    def final(self, x: Tensor) -> Tensor:
        """Rows after the final norm, in f32."""
        return norm(x.float(), self.weights.final_norm)[0]

    def _first(self, inputs: Inputs, tokens: Tensor) -> Tensor:
        """Embeddings, or the residual stream received from the previous stage."""
        weights, own = self.weights, self.shard.vocab
        if not self.shard.embeds or weights.embed is None:
            like = weights.final_norm.weight
            rows = self.ranks.receive(len(inputs.tokens), like)
            return rows.to(self.dtype)
        if self.shard.ranks == 1:
            x = functional.embedding(tokens, weights.embed)
        else:
            ours = (tokens >= own.start) & (tokens < own.stop)
            x = functional.embedding((tokens - own.start).clamp(0, len(own) - 1), weights.embed)
            x = self.ranks.sum(x * ours.unsqueeze(1))
        if self.spec.embed_scale is not None:
            x = x * self.spec.embed_scale
        if weights.positions is not None:
            x = x + functional.embedding(inputs.positions, weights.positions)
        return x

    def _attend(
        self, mixer: MixerWeights, x: Tensor, inputs: Inputs, table: Tensor, places: Tensor
    ) -> Tensor:
        """Attention output, all-reduced over the ranks."""
        pool = self.pools[mixer.kv_group]
        at = None if mixer.rotation is None else self.weights.rotations[mixer.rotation]
        if isinstance(mixer.projections, HeadWeights):
            attended = attend_heads(mixer, x, inputs, table, places, pool, at)
        else:
            attended = attend_latent_rows(mixer, x, inputs, table, places, pool, at)
        return self.ranks.sum(product(attended, mixer.out, mixer.out_bias))

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        return self.ranks.sum(feed_forward(layer.feed_forward, x))


def one_of_each(model: Model) -> Model:
    """A reduced model with one layer of each kind. One step of it launches the same kernels as a
    full step and has the same peak memory. All ranks of a stage must keep the same layers, because
    their all-reduces must match.
    """
    kinds: dict[object, LayerWeights] = {}
    for index, layer in zip(model.shard.layers, model.weights.layers, strict=True):
        alone = model.shard.ranks == 1
        form = [(each.dtype, each.shape) for each in tensors_of(layer)] if alone else []
        kinds.setdefault((model.spec.layers[index], layer.mixer.kv_group, *form), layer)
    return replace(model, weights=replace(model.weights, layers=tuple(kinds.values())))


def norm(
    x: Tensor,
    weights: NormWeights,
    branch: Tensor | None = None,
    after: NormWeights | None = None,
) -> tuple[Tensor, Tensor]:
    """The norm of `x + branch`, and the sum itself. `after` normalises the branch first."""
    if branch is not None and after is not None and (weights.kind, after.kind) != ("rms", "rms"):
        branch, after = norm(branch, after)[0], None
    if weights.kind != "rms":
        return layer_norm(x, weights.weight, weights.bias, weights.eps, residual=branch)
    of_branch = None if after is None else (after.weight, after.eps)
    return rms_norm(x, weights.weight, weights.eps, residual=branch, after=of_branch)
