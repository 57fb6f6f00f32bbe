"""Feed-forward of one layer: dense, or a mixture of experts."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels import Beside, experts, linear_wide, route
from penstock.backends.torch.kernels.mixture import inner_rows, output_rows, takes
from penstock.backends.torch.kernels.router import Router, route_rows
from penstock.backends.torch.layers.products import (
    FASTER,
    gated_product,
    matrix_product,
    mixture_key,
)
from penstock.backends.torch.load.weights import MixtureWeights, MlpWeights


def feed_forward(weights: MlpWeights | MixtureWeights, x: Tensor) -> Tensor:
    """This rank's part of the feed-forward's output for the rows `x`: [rows, hidden], to be summed
    over the ranks of the stage.
    """
    if isinstance(weights, MlpWeights):
        return _mlp(weights, x)
    return _mixture(weights, x)


def _mlp(weights: MlpWeights, x: Tensor) -> Tensor:
    if weights.gated:
        inner = gated_product(x, weights.inner, weights.activation)
    else:
        inner = matrix_product(x, weights.inner)
        tanh = weights.activation.kind == "gelu_tanh"
        inner = functional.gelu(inner, approximate="tanh" if tanh else "none")
    return matrix_product(inner, weights.down)


def _mixture(weights: MixtureWeights, x: Tensor) -> Tensor:
    few = few_rows(weights, x)
    if few is not None and FASTER.get(few):
        return mixture_of_few(weights, x)
    return mixture_of_many(weights, x)


def few_rows(weights: MixtureWeights, x: Tensor) -> tuple[object, ...] | None:
    """Key of the mixture and `x` in `products.FASTER`. None if the kernels for few rows do not
    support this mixture or `x`.
    """
    given = (weights.inner, weights.down)
    if not len(x) or not takes(x, weights.router, *given, weights.chosen):
        return None
    return mixture_key(x, weights.router, *given, weights.chosen)


def mixture_of_few(weights: MixtureWeights, x: Tensor) -> Tensor:
    """The output of a mixture of experts, by the kernels for few rows: [rows, hidden]."""
    router = Router(
        weights.router,
        weights.rule,
        weights.chosen,
        weights.correction,
        weights.router_bias,
        _own(weights),
        weights.shared_gate,
    )
    indices, factors, logits = route_rows(x, router)
    on_input = {"weight_on_input": weights.weight_on_input}
    given = (indices, factors)
    inner = inner_rows(x, *given, weights.inner, weights.activation, **on_input)
    beside = _beside(weights, x, logits)
    return output_rows(inner, *given, weights.down, **on_input, beside=beside)


def mixture_of_many(weights: MixtureWeights, x: Tensor) -> Tensor:
    # Compute router logits in f32, because a small error could select another expert.
    logits = linear_wide(x, weights.router)
    routed = logits.shape[1] - weights.shared_gate
    rules = (weights.rule, weights.chosen, weights.correction, weights.router_bias)
    indices, factors = route(logits[:, :routed], *rules, _own(weights))
    return experts(
        x,
        indices,
        factors,
        weights.inner,
        weights.down,
        weights.activation,
        weight_on_input=weights.weight_on_input,
        beside=_beside(weights, x, logits),
        scratch=None if weights.widening is None else weights.widening.scratch(len(x)),
    )


def _own(weights: MixtureWeights) -> range | None:
    routed = len(weights.router) - weights.shared_gate
    return weights.own if len(weights.own) < routed else None


def _beside(weights: MixtureWeights, x: Tensor, logits: Tensor) -> Beside | None:
    """Output of the shared expert, and its gate, which is the last logit."""
    if weights.shared is None:
        return None
    return Beside(_mlp(weights.shared, x), logits[:, -1] if weights.shared_gate else None)
