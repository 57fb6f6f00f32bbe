"""Qwen3, dense: RMS norms on each query and key head, head_dim independent of the hidden size."""

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, WeightRecipes

DEFAULT_HEAD_DIM = 128


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    blocks = common.has_block_scales(config)
    bias = config.flag("attention_bias", default=False)
    spec = common.hf_spec(
        config,
        "qwen3",
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        windows=common.upper_windows(config),
        default_head_dim=DEFAULT_HEAD_DIM,
        quantised=blocks,
    )
    return spec, hf_recipes(spec, block_scales=blocks)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    spec = common.gguf_spec(header, "qwen3", qk_norm=True)
    return spec, gguf_recipes(spec)
