"""One layer's feed-forward: dense, or a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels import activate, experts, linear, route
from penstock.backends.torch.weights import MixtureWeights, MlpWeights


def feed_forward(weights: MlpWeights | MixtureWeights, x: Tensor) -> Tensor:
    """This rank's part of the feed-forward of the rows `x` [rows, hidden]."""
    if isinstance(weights, MlpWeights):
        return _mlp(weights, x)
    return _mixture(weights, x)


def _mlp(weights: MlpWeights, x: Tensor) -> Tensor:
    inner = linear(x, weights.inner)
    if weights.gated:
        inner = activate(inner, weights.activation)
    else:
        tanh = weights.activation.kind == "gelu_tanh"
        inner = functional.gelu(inner, approximate="tanh" if tanh else "none")
    return linear(inner, weights.down)


def _mixture(weights: MixtureWeights, x: Tensor) -> Tensor:
    # In f32, because a small error would choose another expert.
    logits = functional.linear(x.float(), weights.router, weights.router_bias)
    routed = logits.shape[1] - weights.shared_gate
    indices, factors = route(logits[:, :routed], weights.rule, weights.chosen, weights.correction)
    partial = len(weights.own) < routed
    if partial:
        elsewhere = (indices < weights.own.start) | (indices >= weights.own.stop)
        indices = (indices - weights.own.start).masked_fill(elsewhere, len(weights.own))
    out = experts(
        x,
        indices,
        factors,
        weights.inner,
        weights.down,
        weights.activation,
        weight_on_input=weights.weight_on_input,
        elsewhere=partial,
    )
    if weights.shared is None:
        return out
    beside = _mlp(weights.shared, x)
    if weights.shared_gate:
        beside = beside * torch.sigmoid(logits[:, routed:]).to(x.dtype)
    return out + beside
