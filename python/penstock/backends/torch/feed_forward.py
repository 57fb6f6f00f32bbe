"""One layer's feed-forward: dense, or a mixture of experts."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels import (
    Beside,
    activate,
    experts,
    linear,
    linear_wide,
    route,
)
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
    logits = linear_wide(x, weights.router)
    routed = logits.shape[1] - weights.shared_gate
    own = weights.own if len(weights.own) < routed else None
    rules = (weights.rule, weights.chosen, weights.correction, weights.router_bias, own)
    indices, factors = route(logits[:, :routed], *rules)
    beside = None
    if weights.shared is not None:
        gate = logits[:, routed] if weights.shared_gate else None
        beside = Beside(_mlp(weights.shared, x), gate)
    return experts(
        x,
        indices,
        factors,
        weights.inner,
        weights.down,
        weights.activation,
        weight_on_input=weights.weight_on_input,
        beside=beside,
        scratch=None if weights.widening is None else weights.widening.scratch(len(x)),
    )
