"""Qwen2 and Qwen2.5, dense: Llama with biases on q, k and v."""

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, WeightRecipes


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    spec = common.hf_spec(config, "qwen2", qkv_bias=True, windows=common.upper_windows(config))
    return spec, hf_recipes(spec)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    spec = common.gguf_spec(header, "qwen2")
    return spec, gguf_recipes(spec)
