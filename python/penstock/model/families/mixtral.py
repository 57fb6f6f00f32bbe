"""Mixtral: Mistral with a mixture of experts whose weights are always normalised to a sum of 1."""

from penstock.model import common, experts
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, Experts, Router, WeightRecipes

_MODULES = {
    "router": "block_sparse_moe.gate",
    "gate": "block_sparse_moe.experts.{e}.w1",
    "up": "block_sparse_moe.experts.{e}.w3",
    "down": "block_sparse_moe.experts.{e}.w2",
}


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    count = experts.count(config)
    mixture = Experts(
        experts=count,
        experts_per_token=config.integer("num_experts_per_tok", 1, count),
        expert=common.dense(config),
        router=Router("softmax", normalise=True),
    )
    spec = common.hf_spec(
        config,
        "mixtral",
        windows=common.uniform_windows(config),
        feed_forwards=(mixture,) * common.hf_layers(config),
    )
    return spec, hf_recipes(spec, _MODULES)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    """A file of the architecture "llama" with experts."""
    mixture = experts.gguf(header, "llama", width="feed_forward_length", normalise=True)
    spec = common.gguf_spec(header, "llama", feed_forward=mixture)
    separate = "blk.0.ffn_gate.0.weight" in header.shapes
    return spec, gguf_recipes(spec, interleaved=True, separate_experts=separate)
