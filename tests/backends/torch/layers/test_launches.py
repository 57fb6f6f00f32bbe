"""Kernels of a step, of which each costs 2 to 3 microseconds in a graph: most of the time of a
small model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.kernels import Matrix
from penstock.backends.torch.kernels.skinny import NARROW
from penstock.backends.torch.layers import feed_forward, products
from penstock.backends.torch.load.weights import LayerWeights, MixtureWeights
from tests.backends.torch.driving import backend
from tests.backends.torch.layers.launched import Step, by_layer, decode_step, prompt_step

pytest.importorskip("triton", reason="Triton is not installed")

# Block tables, tokens and places, embedding; final norm, head; parts of logits, two for rows with a
# cut, draw.
OUTSIDE = 9
# Norm, projection, rotation, attention, merge, output; norm, two products, activation between them.
DENSE = 10
# In place of the last three: router, choice, order, gathered rows, two products of two kernels,
# activation, sum.
GROUPED = 17
# The product that reads codes takes rows from where they are.
CODES = 14


# Where the kernels for a few rows are faster: the activation is a part of the product, and after
# attention there are a norm and three kernels.
FEW_DENSE = DENSE - 1
FEW = 10
# Of a step with prompts: the attention of chunks, and zeros for rows of padding. The first layer
# finds the tiles for all.
CHUNKS = 2
TILES = 15


def counted(
    family: str, published: Callable[[LayerWeights], LayerWeights], step: Step = decode_step
) -> tuple[int, int]:
    """Kernels outside of the layers, and of the layer that has the most. The first one is left out:
    the sum at the end, which is there with any layer, would count as one of its own.
    """
    with backend(family, dtype="auto") as loaded:
        assert isinstance(loaded, TorchBackend)
        layers = tuple(published(layer) for layer in loaded._model.weights.layers)
        weights = replace(loaded._model.weights, layers=layers)
        loaded._model = replace(loaded._model, weights=weights)
        outside, layers_of = by_layer(loaded, 4, step)
    counts = [sum(layer.values()) for layer in layers_of]
    assert counts[0] <= max(counts[1:]) + 2 + TILES * (step is prompt_step)
    return sum(outside.values()), max(counts[1:])


def narrowed(layer: LayerWeights) -> LayerWeights:
    """With a router whose weights are bfloat16, as in published checkpoints."""
    own = layer.feed_forward
    if not isinstance(own, MixtureWeights):
        return layer
    return replace(layer, feed_forward=replace(own, router=own.router.bfloat16()))


@pytest.mark.parametrize(
    ("family", "outside", "layer"),
    [
        ("qwen3", OUTSIDE, DENSE),
        ("llama", OUTSIDE, DENSE),
        ("qwen2", OUTSIDE, DENSE),
        # Embeddings are scaled.
        ("gemma3", OUTSIDE + 1, DENSE),
        ("gemma2", OUTSIDE + 1, DENSE),
        # Embeddings of positions are added; the short tables need no merge.
        ("gpt2", OUTSIDE + 2, DENSE - 1),
        ("qwen3moe", OUTSIDE, GROUPED),
        # Biases of gate and up: the expert of each row, its index cut, its bias, the sum.
        ("gptoss", OUTSIDE, GROUPED + 4),
        # Products to the latent's space and back, and a store; a shared expert.
        ("deepseek2", OUTSIDE, GROUPED + 6),
        # The queries' norm and second product.
        ("deepseek3", OUTSIDE, GROUPED + 8),
        ("qwen2moe", OUTSIDE, GROUPED + 3),
    ],
)
def test_a_step_launches_no_more_kernels(family: str, outside: int, layer: int) -> None:
    assert counted(family, narrowed) == (outside, layer)


@pytest.mark.parametrize(("family", "layer"), [("qwen3", DENSE), ("qwen3moe", GROUPED)])
def test_a_step_with_prompts_launches_few_more(family: str, layer: int) -> None:
    assert counted(family, narrowed, prompt_step)[1] == layer + CHUNKS


def test_experts_of_codes_need_fewer_kernels() -> None:
    def coded(layer: LayerWeights) -> LayerWeights:
        layer = narrowed(layer)
        own = layer.feed_forward
        assert isinstance(own, MixtureWeights)
        inner, down = (as_codes(matrix) for matrix in (own.inner, own.down))
        return replace(layer, feed_forward=replace(own, inner=inner, down=down))

    assert counted("gptoss", coded) == (OUTSIDE, CODES)


class Faster(dict[tuple[object, ...], Any]):
    """Takes the kernels for a few rows for everything."""

    def __missing__(self, _key: tuple[object, ...]) -> Any:
        return NARROW

    def get(self, key: tuple[object, ...], _default: Any = None) -> Any:
        return self[key]

    def __bool__(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("family", "layer"),
    [
        ("qwen3", FEW_DENSE),
        ("gemma3", FEW_DENSE),
        # The activation is torch's; no merge.
        ("gpt2", DENSE - 1),
        ("qwen3moe", FEW),
        # Biases are added where they are met.
        ("gptoss", FEW),
        # A shared expert in two kernels; latent attention as above.
        ("deepseek2", FEW + 5),
        ("qwen2moe", FEW + 2),
    ],
)
def test_few_rows_need_fewer_kernels(
    family: str, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (products, feed_forward):
        monkeypatch.setattr(module, "FASTER", Faster())
    # Of the tiny weights some rows are no multiple of 16 long, and some begin anywhere in a file.
    monkeypatch.setattr(products, "fits", lambda *_: True)
    monkeypatch.setattr(feed_forward, "takes", lambda *_: True)
    assert counted(family, narrowed)[1] == layer


def as_codes(matrix: Matrix) -> Matrix:
    count, outputs, inputs = matrix.codes.shape
    codes = torch.zeros(count, outputs, inputs // 2, dtype=torch.uint8)
    scales = torch.zeros(count, outputs, max(1, inputs // 32), dtype=torch.uint8)
    return Matrix(codes, scales, matrix.bias, "mxfp4")
