"""Seed-OSS: Llama with biases on q, k and v."""

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes, with_roles
from penstock.model.spec import DecoderSpec, WeightRecipes

DEFAULT_HEAD_DIM = 128


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    spec = common.hf_spec(
        config,
        "seed_oss",
        qkv_bias=config.flag("attention_bias", default=True),
        out_bias=config.flag("attention_out_bias", default=False),
        mlp_bias=config.flag("mlp_bias", default=False),
        default_head_dim=DEFAULT_HEAD_DIM,
    )
    return spec, hf_recipes(spec)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    spec = common.gguf_spec(header, "seed_oss")
    norm = {"feed_forward_norm": "blk.{}.post_attention_norm"}
    return spec, with_roles(gguf_recipes(spec), norm)
