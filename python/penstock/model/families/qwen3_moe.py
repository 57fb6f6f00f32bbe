"""Qwen3 with a mixture of experts (30B-A3B, 235B-A22B)."""

from penstock.model import common, experts
from penstock.model.families.qwen3 import DEFAULT_HEAD_DIM
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, WeightRecipes


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    blocks = common.has_block_scales(config)
    bias = config.flag("attention_bias", default=False)
    spec = common.hf_spec(
        config,
        "qwen3moe",
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        windows=common.upper_windows(config),
        default_head_dim=DEFAULT_HEAD_DIM,
        quantised=blocks,
        feed_forwards=experts.qwen_layers(config),
    )
    return spec, hf_recipes(spec, block_scales=blocks)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    """GGUF has no key for `norm_topk_prob`, which is true in all published checkpoints."""
    mixture = experts.gguf(header, "qwen3moe", normalise=True)
    spec = common.gguf_spec(header, "qwen3moe", qk_norm=True, feed_forward=mixture)
    return spec, gguf_recipes(spec)
