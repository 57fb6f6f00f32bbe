"""Qwen2 with a mixture of experts and a gated shared expert (Qwen1.5-MoE, Qwen2-57B-A14B)."""

from penstock.model import common, experts
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, Mlp, WeightRecipes


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    width = config.integer("shared_expert_intermediate_size", 1, common.WIDEST)
    layers = experts.qwen_layers(config, shared=Mlp("gated", width, "silu"))
    spec = common.hf_spec(
        config,
        "qwen2moe",
        qkv_bias=config.flag("qkv_bias", default=True),
        windows=common.upper_windows(config),
        feed_forwards=layers,
    )
    return spec, hf_recipes(spec)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    fields = header.fields("qwen2moe.")
    width = fields.integer("expert_shared_feed_forward_length", 1, common.WIDEST)
    shared = Mlp("gated", width, "silu")
    mixture = experts.gguf(header, "qwen2moe", normalise=False, shared=shared)
    spec = common.gguf_spec(header, "qwen2moe", feed_forward=mixture)
    return spec, gguf_recipes(spec)
